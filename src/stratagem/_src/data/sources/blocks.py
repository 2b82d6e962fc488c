"""Files whose rows are read in blocks of columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from stratagem._src.data.plan.rows import concat_rows, num_rows, row, slice_rows
from stratagem._src.data.plan.stream import State, Stream

__all__ = ["BlockStream"]


class BlockStream(Stream):
    """The rows of blocks.

    Args:
        blocks: Returns the blocks of rows from a row number on.
    """

    def __init__(self, blocks: Callable[[int], Iterator[Any]]) -> None:
        self._open = blocks
        self._blocks: Iterator[Any] | None = None
        self._block: Any = None
        self._size = 0
        self._position = 0
        self._given = 0

    @property
    def uniform(self) -> bool:
        """Whether rows are alike: they are."""
        return True

    def _refill(self) -> bool:
        if self._blocks is None:
            self._blocks = self._open(self._given)
        while self._position >= self._size:
            block = next(self._blocks, None)
            if block is None:
                return False
            self._block, self._size, self._position = block, num_rows(block), 0
        return True

    def __next__(self) -> Any:
        if not self._refill():
            raise StopIteration
        self._position += 1
        self._given += 1
        return row(self._block, self._position - 1)

    def next_rows(self, count: int) -> Any | None:
        """Returns slices of the blocks."""
        parts = []
        while count and self._refill():
            stop = min(self._size, self._position + count)
            parts.append(slice_rows(self._block, self._position, stop))
            count -= stop - self._position
            self._given += stop - self._position
            self._position = stop
        return concat_rows(parts) if parts else None

    def get_state(self) -> State:
        """Returns the number of the next row."""
        return self._given

    def set_state(self, state: State) -> None:
        """Goes on at that row."""
        self._given = state

    def close(self) -> None:
        """Closes the file."""
        close = getattr(self._blocks, "close", None)
        if close is not None:
            close()
