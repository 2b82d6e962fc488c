"""``Stream``: one pass over the elements of a plan."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Self

from stratagem._src.core.types import IteratorState
from stratagem._src.data.plan.rows import num_rows, stack_elements

__all__ = ["Stream", "UnaryStream"]

State = IteratorState


class Stream(ABC):
    """One pass over elements, which can be saved and resumed.

    ``set_state`` is called at most once, on a stream that has not returned an element yet.
    """

    def __iter__(self) -> Self:
        return self

    @property
    def uniform(self) -> bool:
        """Whether all elements are known to have the same shapes, so ``next_rows`` cannot fail."""
        return False

    @abstractmethod
    def __next__(self) -> Any:
        """Returns the next element."""

    @abstractmethod
    def get_state(self) -> State:
        """Returns a JSON-able value that ``set_state`` resumes from."""

    @abstractmethod
    def set_state(self, state: State) -> None:
        """Positions a new stream where the saved one was."""

    def elements(self) -> Iterator[Any]:
        """Returns an iterator over the remaining elements, which may need fewer Python calls per element.

        Discard it after an error. Do not call other methods of the stream that consume elements while it is
        in use.
        """
        return self

    def next_rows(self, count: int) -> Any | None:
        """Returns the next ``count`` elements as rows: fewer only at the end, ``None`` for none."""
        elements = list(itertools.islice(self, count))
        return stack_elements(elements) if elements else None

    def skip(self, count: int) -> int:
        """Skips up to ``count`` elements and returns how many were skipped."""
        return sum(1 for _ in itertools.islice(self, count))

    def skip_past_error(self) -> None:  # noqa: B027
        """Skips what the last ``next`` failed at, if the next call would fail there again."""

    def close(self) -> None:  # noqa: B027
        """Stops threads and closes files."""


class UnaryStream(Stream):
    """A stream over one other stream."""

    def __init__(self, source: Stream) -> None:
        self._source = source

    @property
    def uniform(self) -> bool:
        """Whether the input is uniform."""
        return self._source.uniform

    def get_state(self) -> State:
        """Returns the state of the input."""
        return self._source.get_state()

    def set_state(self, state: State) -> None:
        """Resumes the input."""
        self._source.set_state(state)

    def skip_past_error(self) -> None:
        """Makes the input skip what it failed at."""
        self._source.skip_past_error()

    def close(self) -> None:
        """Closes the input."""
        self._source.close()


def rows_or_zero(rows: Any | None) -> int:
    """Returns the number of rows, 0 for ``None``."""
    return 0 if rows is None else num_rows(rows)
