"""``concatenate``: one dataset after the other."""

from __future__ import annotations

from typing import Any

from stratagem._src.data.dataset_spec import common_spec
from stratagem._src.data.options import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from stratagem._src.data.plan.node import Epoch, Node
from stratagem._src.data.plan.random_access import ConcatAccess, RandomAccess
from stratagem._src.data.plan.rows import concat_rows, num_rows
from stratagem._src.data.plan.run import Run
from stratagem._src.data.plan.stream import State, Stream

__all__ = ["Concatenate"]


class Concatenate(Node):
    """All elements of the first input, then all of the second."""

    def __init__(self, first: Node, second: Node) -> None:
        self.inputs = (first, second)

    def _compute_spec(self) -> Any:
        first, second = self.inputs
        return common_spec(first.element_spec, second.element_spec, "concatenate")

    def cardinality(self) -> int:
        """Returns the sum of both cardinalities."""
        sizes = [node.cardinality() for node in self.inputs]
        for special in (INFINITE_CARDINALITY, UNKNOWN_CARDINALITY):
            if special in sizes:
                return special
        return sum(sizes)

    def random_access(self) -> RandomAccess | None:
        """Returns one table of both, if their specs are equal."""
        first, second = (node.random_access() for node in self.inputs)
        if not first or not second or self.inputs[0].element_spec != self.inputs[1].element_spec:
            return None
        return ConcatAccess([first, second])

    def open(self, run: Run, epoch: Epoch) -> Stream:
        """Starts a pass."""
        return _ConcatenateStream([node.open(run, epoch) for node in self.inputs])


class _ConcatenateStream(Stream):
    def __init__(self, streams: list[Stream]) -> None:
        self._streams = streams
        self._turn = 0

    def __next__(self) -> Any:
        while self._turn < len(self._streams):
            try:
                return next(self._streams[self._turn])
            except StopIteration:
                self._turn += 1
        raise StopIteration

    def next_rows(self, count: int) -> Any | None:
        parts = []
        while count and self._turn < len(self._streams):
            rows = self._streams[self._turn].next_rows(count)
            if rows is None:
                self._turn += 1
                continue
            parts.append(rows)
            count -= num_rows(rows)
        return concat_rows(parts) if parts else None

    def skip(self, count: int) -> int:
        skipped = 0
        while skipped < count and self._turn < len(self._streams):
            now = self._streams[self._turn].skip(count - skipped)
            skipped += now
            if now == 0:
                self._turn += 1
        return skipped

    def get_state(self) -> State:
        return {"turn": self._turn, "inputs": [stream.get_state() for stream in self._streams]}

    def set_state(self, state: State) -> None:
        self._turn = state["turn"]
        for stream, saved in zip(self._streams, state["inputs"], strict=True):
            stream.set_state(saved)

    def skip_past_error(self) -> None:
        for stream in self._streams:
            stream.skip_past_error()

    def close(self) -> None:
        for stream in self._streams:
            stream.close()
