"""``assert_cardinality``: a number of elements that the user declares and the plan does not know."""

from __future__ import annotations

from typing import Any

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.data.checks import at_least
from stratagem._src.data.options import INFINITE_CARDINALITY
from stratagem._src.data.plan.node import Epoch, Node
from stratagem._src.data.plan.run import Run
from stratagem._src.data.plan.stream import State, Stream, UnaryStream

__all__ = ["AssertCardinality"]


class AssertCardinality(Node):
    """The same elements; raises if their number is not the declared one."""

    def __init__(self, source: Node, expected: int) -> None:
        self.inputs = (source,)
        self._expected = at_least(INFINITE_CARDINALITY, "expected_cardinality", expected)

    def cardinality(self) -> int:
        """Returns the declared cardinality."""
        return self._expected

    def open(self, run: Run, epoch: Epoch) -> Stream:
        """Starts a pass."""
        return _AssertStream(self.inputs[0].open(run, epoch), self._expected)


class _AssertStream(UnaryStream):
    def __init__(self, source: Stream, expected: int) -> None:
        super().__init__(source)
        self._expected = expected
        self._given = 0

    def __next__(self) -> Any:
        try:
            element = next(self._source)
        except StopIteration:
            if self._given == self._expected:
                raise
            raise self._wrong(f"only {self._given}") from None
        self._given += 1
        if self._given > self._expected != INFINITE_CARDINALITY:
            raise self._wrong(f"at least {self._given}")
        return element

    def _wrong(self, found: str) -> InvalidArgumentError:
        endless = self._expected == INFINITE_CARDINALITY
        expected = "infinitely many" if endless else self._expected
        return InvalidArgumentError(
            f"The dataset was expected to have {expected} elements, but has {found}. "
            "Pass the right number to assert_cardinality, or leave it out."
        )

    def get_state(self) -> State:
        return {"given": self._given, "input": self._source.get_state()}

    def set_state(self, state: State) -> None:
        self._given = state["given"]
        self._source.set_state(state["input"])
