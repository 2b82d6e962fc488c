"""``BlockRows``: a stream over the rows of consecutive blocks."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from stratagem._src.data.plan.rows import concat_rows, num_rows, row, slice_rows
from stratagem._src.data.plan.stream import Stream

__all__ = ["BlockRows"]


class BlockRows(Stream):
    """Base class of streams that read several rows at once.

    Attributes:
        _position: The index of the next row in the current block.
        _size: The number of rows in the current block.
        _given: The number of rows returned or skipped so far.
    """

    _block: Any = None
    _size = 0
    _position = 0
    _given = 0

    @abstractmethod
    def _next_block(self) -> Any | None:
        """Returns the next block of rows; ``None`` at the end."""

    def _refill(self) -> bool:
        while self._position >= self._size:
            block = self._next_block()
            if block is None:
                return False
            self._block, self._size, self._position = block, num_rows(block), 0
        return True

    def _advance(self, count: int) -> int:
        """Skips up to ``count`` rows of the current block and returns how many."""
        step = min(self._size - self._position, count)
        self._position += step
        self._given += step
        return step

    def __next__(self) -> Any:
        """Returns a row."""
        if self._position >= self._size and not self._refill():
            raise StopIteration
        position = self._position
        self._position = position + 1
        self._given += 1
        return row(self._block, position)

    def next_rows(self, count: int) -> Any | None:
        """Returns slices of the blocks."""
        parts = []
        while count and self._refill():
            start = self._position
            count -= self._advance(count)
            parts.append(slice_rows(self._block, start, self._position))
        return concat_rows(parts) if parts else None

    def skip(self, count: int) -> int:
        """Skips rows without extracting them from their blocks."""
        skipped = 0
        while skipped < count and self._refill():
            skipped += self._advance(count - skipped)
        return skipped
