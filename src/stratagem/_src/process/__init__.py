"""Process-wide facilities: threads, fork, exit, signals, limits, import hooks."""
