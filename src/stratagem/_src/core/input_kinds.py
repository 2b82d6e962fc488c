"""What compiled functions recognise about datasets and their iterators, without loading either.

Functions look for datasets and iterators among their arguments. The classes themselves load a hundred
modules, which programs that bring their own batches never need.
"""

from __future__ import annotations

from typing import Any

__all__ = ["NOT_DRAWN", "DrawableIterator", "Drawn", "EndOfData", "LoopedOver"]


class EndOfData(StopIteration):
    """The end of a dataset: ends loops, and differs from a ``StopIteration`` of user code in a function."""


class LoopedOver:
    """Base of datasets: a function with such an argument loops over it, outside of any trace."""

    __slots__ = ()


class DrawableIterator:
    """Base of iterators over datasets: each call of a compiled function draws its own elements."""

    __slots__ = ()


NOT_DRAWN: Any = object()
"""The element of a ``Drawn`` that is still in its iterator."""


class Drawn:
    """A draw that an interrupt (Ctrl-C) cannot lose: the caller holds it before it is made.

    The iterator sets ``element`` in the same moment in which the element leaves it: signal handlers run
    after calls and at loop ends, and the bytecode there has neither. So an interrupted draw has happened,
    and can be put back, or it has not.

    Attributes:
        iterator: The iterator.
        before: The state of the iterator before the draw.
        element: The element; ``NOT_DRAWN`` until the draw.
    """

    __slots__ = ("before", "element", "iterator")

    def __init__(self, iterator: Any, before: Any) -> None:
        self.iterator: Any = iterator
        self.before: Any = before
        self.element: Any = NOT_DRAWN

    def put_back(self) -> None:
        """Puts the element back into its iterator, which returns it again."""
        if self.element is not NOT_DRAWN:
            self.iterator.put_back([(self.element, self.before)])
