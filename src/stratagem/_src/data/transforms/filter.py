"""``filter``: the elements for which a function is true."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import Element
from stratagem._src.data.options import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from stratagem._src.data.plan.node import Epoch, Node
from stratagem._src.data.plan.run import Run
from stratagem._src.data.plan.stream import Stream, UnaryStream
from stratagem._src.data.transforms.element_function import ElementFunction

__all__ = ["Filter", "Predicate"]


class Predicate:
    """A user function from an element to a bool.

    Args:
        fn: The user's function.
        needed_by: The transformation that calls it, for messages.
    """

    def __init__(self, fn: Callable[..., Any], needed_by: str) -> None:
        self._function = ElementFunction(fn, "predicate")
        self._needed_by = needed_by

    def __call__(self, element: Element) -> bool:
        """Returns the result for an element."""
        answer = self._function(element)
        if getattr(answer, "shape", None) != () or answer.dtype != np.bool_:
            raise InvalidArgumentError(
                f"The predicate of {self._needed_by} must return one bool, got {answer!r}."
            )
        return bool(answer)


class Filter(Node):
    """The elements for which ``predicate`` is true."""

    def __init__(self, source: Node, predicate: Callable[..., Any]) -> None:
        self.inputs = (source,)
        self._predicate = Predicate(predicate, "filter")

    def cardinality(self) -> int:
        """Returns unknown, unless the input is empty or infinite."""
        size = self.inputs[0].cardinality()
        return size if size in (0, INFINITE_CARDINALITY) else UNKNOWN_CARDINALITY

    def open(self, run: Run, epoch: Epoch) -> Stream:
        """Starts a pass."""
        return _FilterStream(self.inputs[0].open(run, epoch), self._predicate)


class _FilterStream(UnaryStream):
    def __init__(self, source: Stream, predicate: Predicate) -> None:
        super().__init__(source)
        self._predicate = predicate

    def __next__(self) -> Any:
        for element in self._source:
            if self._predicate(element):
                return element
        raise StopIteration
