"""``LoopsOverDataset``: what tells a trace that it has to be a Python loop."""

from __future__ import annotations

__all__ = ["LoopsOverDataset"]


class LoopsOverDataset(Exception):
    """A function that is being traced iterates over a distributed dataset."""
