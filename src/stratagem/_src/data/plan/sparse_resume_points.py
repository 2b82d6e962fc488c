"""``SparseResumePoints``: reads back the few elements of a stream that are still buffered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from stratagem._src.core.errors import DataLossError
from stratagem._src.data.plan.resume_points import shrunk_input_message
from stratagem._src.data.plan.stream import State, Stream

__all__ = ["SparseResumePoints"]

_SEGMENT = 64


class SparseResumePoints:
    """Saved states of a stream before each segment that has elements which are still held.

    The stream is cut into segments of ``_SEGMENT`` elements. An element may be held for very long while all
    around it are consumed. Then only the segments of held elements are read again, not everything since.

    Args:
        stream: The input.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._states: dict[int, State] = {}
        self._held: dict[int, int] = {}
        self.read = 0

    def next_element(self) -> Any:
        """Returns the next element of the stream; it does not count as held yet."""
        segment, place = divmod(self.read, _SEGMENT)
        if place == 0:
            if segment - 1 in self._states and not self._held.get(segment - 1):
                del self._states[segment - 1]
            self._states[segment] = self._stream.get_state()
        element = next(self._stream)
        self.read += 1
        return element

    def hold(self, number: int) -> None:
        """Marks element ``number`` as held."""
        segment = number // _SEGMENT
        self._held[segment] = self._held.get(segment, 0) + 1

    def release(self, number: int) -> None:
        """Marks element ``number`` as no longer held."""
        segment = number // _SEGMENT
        self._held[segment] -= 1
        if not self._held[segment]:
            del self._held[segment]
            if segment != self.read // _SEGMENT:
                del self._states[segment]

    def get_state(self) -> State:
        """Returns a JSON-able value; adjacent segments share one entry."""
        wanted = {*self._held, *([self.read // _SEGMENT] if self.read % _SEGMENT else [])}
        runs: list[list[Any]] = []
        for segment in sorted(wanted):
            if runs and runs[-1][1] == segment:
                runs[-1][1] = segment + 1
            else:
                runs.append([segment, segment + 1, self._states[segment]])
        return {"read": self.read, "runs": runs, "input": self._stream.get_state()}

    def resume(self, saved: State, open_stream: Callable[[], Stream]) -> Iterator[tuple[int, Any]]:
        """Restores the position of a new stream, and yields the elements that may have been held.

        Raises:
            DataLossError: If the stream has become shorter since.
        """
        for first, stop, state in saved["runs"]:
            stream = open_stream()
            stream.set_state(state)
            for number in range(first * _SEGMENT, min(stop * _SEGMENT, saved["read"])):
                if number % _SEGMENT == 0:
                    self._states[number // _SEGMENT] = stream.get_state()
                try:
                    element = next(stream)
                except StopIteration:
                    raise DataLossError(shrunk_input_message(saved["read"])) from None
                yield number, element
            stream.close()
        self._stream.set_state(saved["input"])
        self.read = saved["read"]
