"""``repeat``: several epochs of the input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stratagem._src.data.checks import as_integer
from stratagem._src.data.options import INFINITE_CARDINALITY
from stratagem._src.data.plan.node import Epoch, Node, known
from stratagem._src.data.plan.rows import concat_rows, num_rows
from stratagem._src.data.plan.run import Run
from stratagem._src.data.plan.stream import State, Stream

__all__ = ["Repeat"]


class Repeat(Node):
    """Repeats the input ``count`` times, or forever for ``None`` and -1."""

    batch_levels = 0

    def __init__(self, source: Node, count: int | None) -> None:
        self.inputs = (source,)
        wanted = -1 if count is None else as_integer("count", count)
        self._count = None if wanted < 0 else wanted

    def cardinality(self) -> int:
        """Returns the product of the input's cardinality and the count."""
        size = self.inputs[0].cardinality()
        if self._count == 0 or size == 0:
            return 0
        if self._count is None:
            return INFINITE_CARDINALITY
        return size * self._count if known(size) else size

    def open(self, run: Run, epoch: Epoch) -> Stream:
        """Starts a pass; the epoch number reaches the shuffles below through ``epoch``."""
        return _RepeatStream(lambda number: self.inputs[0].open(run, (*epoch, number)), self._count)


class _RepeatStream(Stream):
    def __init__(self, open_epoch: Callable[[int], Stream], count: int | None) -> None:
        self._open_epoch = open_epoch
        self._count = count
        self._number = 0
        self._current: Stream | None = None
        self._epoch_is_empty = True

    def _stream(self) -> Stream | None:
        if self._current is None and (self._count is None or self._number < self._count):
            self._current = self._open_epoch(self._number)
            self._epoch_is_empty = True
        return self._current

    def _end_epoch(self) -> None:
        self.close()
        self._number += 1
        if self._epoch_is_empty:
            # An empty input stays empty: repeating it forever would never return.
            self._count = 0

    def __next__(self) -> Any:
        while (stream := self._stream()) is not None:
            try:
                element = next(stream)
            except StopIteration:
                self._end_epoch()
            else:
                self._epoch_is_empty = False
                return element
        raise StopIteration

    def next_rows(self, count: int) -> Any | None:
        parts = []
        while count and (stream := self._stream()) is not None:
            rows = stream.next_rows(count)
            if rows is None:
                self._end_epoch()
                continue
            self._epoch_is_empty = False
            parts.append(rows)
            count -= num_rows(rows)
        return concat_rows(parts) if parts else None

    def skip(self, count: int) -> int:
        skipped = 0
        while skipped < count and (stream := self._stream()) is not None:
            now = stream.skip(count - skipped)
            if now == 0:
                self._end_epoch()
                continue
            self._epoch_is_empty = False
            skipped += now
        return skipped

    def get_state(self) -> State:
        current = self._stream()
        return {
            "epoch": self._number,
            "empty": self._epoch_is_empty,
            "ended": self._count == 0,
            "input": None if current is None else current.get_state(),
        }

    def set_state(self, state: State) -> None:
        self._number = state["epoch"]
        if state["ended"]:
            self._count = 0
        if state["input"] is not None:
            self._current = self._open_epoch(self._number)
            self._current.set_state(state["input"])
        self._epoch_is_empty = state["empty"]

    def skip_past_error(self) -> None:
        if self._current is not None:
            self._current.skip_past_error()

    def close(self) -> None:
        if self._current is not None:
            self._current.close()
            self._current = None
