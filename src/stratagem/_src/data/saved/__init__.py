"""Datasets in directories: what ``save`` writes, and ``load`` and ``snapshot`` read."""
