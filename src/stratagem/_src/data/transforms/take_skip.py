"""``take`` and ``skip``."""

from __future__ import annotations

from typing import Any

from stratagem._src.data.checks import as_integer
from stratagem._src.data.options import INFINITE_CARDINALITY
from stratagem._src.data.plan.node import Epoch, Node, known
from stratagem._src.data.plan.run import Run
from stratagem._src.data.plan.stream import State, Stream, UnaryStream, rows_or_zero

__all__ = ["Skip", "Take"]

ALL = -1


class Take(Node):
    """The first ``count`` elements; all of them for -1."""

    batch_levels = 0

    def __init__(self, source: Node, count: int) -> None:
        self.inputs = (source,)
        self._count = as_integer("count", count)

    def cardinality(self) -> int:
        """Returns the smaller of the input's cardinality and the count."""
        size = self.inputs[0].cardinality()
        if self._count < 0:
            return size
        if size == INFINITE_CARDINALITY:
            return self._count
        return min(size, self._count)

    def open(self, run: Run, epoch: Epoch) -> Stream:
        """Starts a pass."""
        source = self.inputs[0].open(run, epoch)
        return source if self._count < 0 else _TakeStream(source, self._count)


class _TakeStream(UnaryStream):
    def __init__(self, source: Stream, count: int) -> None:
        super().__init__(source)
        self._left = count

    def __next__(self) -> Any:
        if self._left <= 0:
            raise StopIteration
        self._left -= 1
        return next(self._source)

    def next_rows(self, count: int) -> Any | None:
        count = min(count, self._left)
        if count == 0:
            return None
        rows = self._source.next_rows(count)
        self._left = self._left - count if rows_or_zero(rows) == count else 0
        return rows

    def skip(self, count: int) -> int:
        count = min(count, self._left)
        self._left -= count
        return self._source.skip(count)

    def get_state(self) -> State:
        return {"left": self._left, "input": self._source.get_state()}

    def set_state(self, state: State) -> None:
        self._left = state["left"]
        self._source.set_state(state["input"])


class Skip(Node):
    """All elements except the first ``count``; none for -1."""

    batch_levels = 0

    def __init__(self, source: Node, count: int) -> None:
        self.inputs = (source,)
        self._count = as_integer("count", count)

    def cardinality(self) -> int:
        """Returns the input's cardinality minus the count."""
        if self._count < 0:
            return 0
        size = self.inputs[0].cardinality()
        return max(0, size - self._count) if known(size) else size

    def open(self, run: Run, epoch: Epoch) -> Stream:
        """Starts a pass."""
        source = self.inputs[0].open(run, epoch)
        return _TakeStream(source, 0) if self._count < 0 else _SkipStream(source, self._count)


class _SkipStream(UnaryStream):
    def __init__(self, source: Stream, count: int) -> None:
        super().__init__(source)
        self._to_skip = count

    def _start(self) -> None:
        if self._to_skip:
            self._source.skip(self._to_skip)
            self._to_skip = 0

    def __next__(self) -> Any:
        self._start()
        return next(self._source)

    def next_rows(self, count: int) -> Any | None:
        self._start()
        return self._source.next_rows(count)

    def skip(self, count: int) -> int:
        self._start()
        return self._source.skip(count)

    def get_state(self) -> State:
        return {"to_skip": self._to_skip, "input": self._source.get_state()}

    def set_state(self, state: State) -> None:
        self._to_skip = state["to_skip"]
        self._source.set_state(state["input"])
