"""Runs one function in every replica: in a single replica, as threads, or as one SPMD program."""
