"""Exports functions and weights to files, for programs without this library or the Python code."""
