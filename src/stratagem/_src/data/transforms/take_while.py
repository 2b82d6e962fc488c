"""``take_while``: the elements before the first for which a function is false."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stratagem._src.data.options import UNKNOWN_CARDINALITY
from stratagem._src.data.plan.node import Epoch, Node
from stratagem._src.data.plan.run import Run
from stratagem._src.data.plan.stream import State, Stream, UnaryStream
from stratagem._src.data.transforms.filter import Predicate

__all__ = ["TakeWhile"]


class TakeWhile(Node):
    """The elements before the first for which ``predicate`` is false."""

    def __init__(self, source: Node, predicate: Callable[..., Any]) -> None:
        self.inputs = (source,)
        self._predicate = Predicate(predicate, "take_while")

    def cardinality(self) -> int:
        """Returns unknown, unless the input is empty."""
        return 0 if self.inputs[0].cardinality() == 0 else UNKNOWN_CARDINALITY

    def open(self, run: Run, epoch: Epoch) -> Stream:
        """Starts a pass."""
        return _TakeWhileStream(self.inputs[0].open(run, epoch), self._predicate)


class _TakeWhileStream(UnaryStream):
    def __init__(self, source: Stream, predicate: Predicate) -> None:
        super().__init__(source)
        self._predicate = predicate
        self._ended = False

    def __next__(self) -> Any:
        if self._ended:
            raise StopIteration
        element = next(self._source)
        if not self._predicate(element):
            self._ended = True
            raise StopIteration
        return element

    def get_state(self) -> State:
        return {"ended": self._ended, "input": self._source.get_state()}

    def set_state(self, state: State) -> None:
        self._ended = state["ended"]
        self._source.set_state(state["input"])
