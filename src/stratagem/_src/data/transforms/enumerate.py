"""``enumerate``: elements with their indices."""

from __future__ import annotations

from typing import Any

import numpy as np

from stratagem._src.data.checks import as_integer
from stratagem._src.data.plan.node import Epoch, Node
from stratagem._src.data.plan.random_access import Indices, RandomAccess
from stratagem._src.data.plan.rows import num_rows
from stratagem._src.data.plan.run import Run
from stratagem._src.data.plan.stream import State, Stream, UnaryStream
from stratagem._src.data.tensor_spec import TensorSpec

__all__ = ["Enumerate"]


class Enumerate(Node):
    """Pairs of an index, counting from ``start``, and an element."""

    def __init__(self, source: Node, start: int) -> None:
        self.inputs = (source,)
        self._start = as_integer("start", start)

    def _compute_spec(self) -> Any:
        return TensorSpec((), np.int64), self.inputs[0].element_spec

    def cardinality(self) -> int:
        """Returns the input's cardinality."""
        return self.inputs[0].cardinality()

    def random_access(self) -> RandomAccess | None:
        """Returns the table with its row numbers."""
        below = self.inputs[0].random_access()
        return None if below is None else _EnumerateAccess(below, self._start)

    def open(self, run: Run, epoch: Epoch) -> Stream:
        """Starts a pass."""
        return _EnumerateStream(self.inputs[0].open(run, epoch), self._start)


class _EnumerateAccess(RandomAccess):
    def __init__(self, below: RandomAccess, start: int) -> None:
        self._below = below
        self._start = start
        self.read_ahead = below.read_ahead

    def __len__(self) -> int:
        return len(self._below)

    def gather(self, indices: Indices) -> Any:
        return indices + self._start, self._below.gather(indices)

    def element(self, index: int) -> Any:
        return np.int64(index + self._start), self._below.element(index)


class _EnumerateStream(UnaryStream):
    def __init__(self, source: Stream, start: int) -> None:
        super().__init__(source)
        self._number = start

    def __next__(self) -> Any:
        element = next(self._source)
        self._number += 1
        return np.int64(self._number - 1), element

    def next_rows(self, count: int) -> Any | None:
        rows = self._source.next_rows(count)
        if rows is None:
            return None
        start = self._number
        self._number += num_rows(rows)
        return np.arange(start, self._number), rows

    def skip(self, count: int) -> int:
        skipped = self._source.skip(count)
        self._number += skipped
        return skipped

    def get_state(self) -> State:
        return {"number": self._number, "input": self._source.get_state()}

    def set_state(self, state: State) -> None:
        self._number = state["number"]
        self._source.set_state(state["input"])
