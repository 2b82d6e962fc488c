"""Partitions a program that was traced with the global batch over the replicas."""
