"""What compiled functions recognise about datasets and their iterators, without loading either.

Functions look for datasets and iterators among their arguments. The classes themselves load a hundred
modules, which programs that bring their own batches never need.
"""

from __future__ import annotations

__all__ = ["DrawableIterator", "EndOfData", "LoopedOver"]


class EndOfData(StopIteration):
    """The end of a dataset: ends loops, and differs from a ``StopIteration`` of user code in a function."""


class LoopedOver:
    """Base of datasets: a function with such an argument loops over it, outside of any trace."""

    __slots__ = ()


class DrawableIterator:
    """Base of iterators over datasets: each call of a compiled function draws its own elements."""

    __slots__ = ()
