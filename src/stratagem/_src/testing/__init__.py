"""Runs a function in the real processes of a cluster, for tests."""
