"""``function``: from a Python function to a trace, a program, and the program's next calls."""
