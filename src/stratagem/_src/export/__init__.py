"""Functions and weights in files, for programs that have neither this library nor the Python code."""
