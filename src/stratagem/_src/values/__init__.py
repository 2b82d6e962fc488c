"""Distributed values: per-replica and mirrored values, merging and selecting."""
