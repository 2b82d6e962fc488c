"""``SparseAnchors``: getting back those few elements of a stream that somebody still holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from stratagem._src.core.errors import DataLossError
from stratagem._src.data.plan.anchors import too_short
from stratagem._src.data.plan.stream import State, Stream

__all__ = ["SparseAnchors"]

_PERIOD = 64


class SparseAnchors:
    """States of a stream before those stretches of it that have elements which are still held.

    Elements may be held for very long while all around them are given out. Then only the stretches
    that they are in are read again, not everything since.

    Args:
        stream: The input.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._states: dict[int, State] = {}
        self._held: dict[int, int] = {}
        self.read = 0

    def next_element(self) -> Any:
        """Returns the next element of the stream, which counts as not held as yet."""
        stretch, place = divmod(self.read, _PERIOD)
        if place == 0:
            if stretch - 1 in self._states and not self._held.get(stretch - 1):
                del self._states[stretch - 1]
            self._states[stretch] = self._stream.get_state()
        element = next(self._stream)
        self.read += 1
        return element

    def hold(self, number: int) -> None:
        """Notes that element ``number`` is held."""
        stretch = number // _PERIOD
        self._held[stretch] = self._held.get(stretch, 0) + 1

    def release(self, number: int) -> None:
        """Notes that element ``number`` is held no longer."""
        stretch = number // _PERIOD
        self._held[stretch] -= 1
        if not self._held[stretch]:
            del self._held[stretch]
            if stretch != self.read // _PERIOD:
                del self._states[stretch]

    def get_state(self) -> State:
        """Returns a value that grows with the number of gaps between what is held, no more."""
        wanted = {*self._held, *([self.read // _PERIOD] if self.read % _PERIOD else [])}
        runs: list[list[Any]] = []
        for stretch in sorted(wanted):
            if runs and runs[-1][1] == stretch:
                runs[-1][1] = stretch + 1
            else:
                runs.append([stretch, stretch + 1, self._states[stretch]])
        return {"read": self.read, "runs": runs, "input": self._stream.get_state()}

    def resume(self, saved: State, open_stream: Callable[[], Stream]) -> Iterator[tuple[int, Any]]:
        """Makes a new stream stand where it stood, and yields what may have been held, by number.

        Raises:
            DataLossError: If the stream has become shorter since.
        """
        for first, stop, state in saved["runs"]:
            stream = open_stream()
            stream.set_state(state)
            for number in range(first * _PERIOD, min(stop * _PERIOD, saved["read"])):
                if number % _PERIOD == 0:
                    self._states[number // _PERIOD] = stream.get_state()
                try:
                    element = next(stream)
                except StopIteration:
                    raise DataLossError(too_short(saved["read"])) from None
                yield number, element
            stream.close()
        self._stream.set_state(saved["input"])
        self.read = saved["read"]
