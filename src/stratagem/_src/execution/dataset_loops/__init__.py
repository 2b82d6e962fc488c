"""Compiled functions that loop over a dataset or a range: a Python loop around compiled steps."""
