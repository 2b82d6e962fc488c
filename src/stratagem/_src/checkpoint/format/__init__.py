"""The storage formats of checkpoints: Orbax, written by several processes, and its predecessor."""
