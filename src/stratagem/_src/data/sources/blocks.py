"""A stream over files that are read in blocks of rows, stored by column."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from stratagem._src.data.plan.block_rows import BlockRows
from stratagem._src.data.plan.stream import State

__all__ = ["BlockStream"]


class BlockStream(BlockRows):
    """Yields the rows of blocks.

    Args:
        blocks: Returns an iterator over the blocks that starts at a given row.
    """

    def __init__(self, blocks: Callable[[int], Iterator[Any]]) -> None:
        self._open = blocks
        self._blocks: Iterator[Any] | None = None

    @property
    def uniform(self) -> bool:
        """Whether all rows have the same shapes: always true."""
        return True

    def _next_block(self) -> Any | None:
        if self._blocks is None:
            self._blocks = self._open(self._given)
        return next(self._blocks, None)

    def get_state(self) -> State:
        """Returns the index of the next row."""
        return self._given

    def set_state(self, state: State) -> None:
        """Continues at that row."""
        self._given = state

    def close(self) -> None:
        """Closes the file."""
        close = getattr(self._blocks, "close", None)
        if close is not None:
            close()
