"""Reductions, gathers and broadcasts between replicas."""
