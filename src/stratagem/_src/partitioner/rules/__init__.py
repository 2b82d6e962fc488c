"""Partitioning rules: how replicas apply each primitive to their shards of its operands."""
