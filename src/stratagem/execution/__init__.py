"""The two ways to run a step: replica threads, and one compiled program."""
