"""The process: threads, fork, exit, signals, limits, import hooks."""
