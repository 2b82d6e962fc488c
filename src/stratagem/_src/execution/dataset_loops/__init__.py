"""Functions that loop over a distributed dataset, and what their steps capture."""
