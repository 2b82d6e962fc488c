"""``ResumePoints``: resumes a stream that is read ahead of its consumer."""

from __future__ import annotations

from collections import deque

from stratagem._src.core.errors import DataLossError
from stratagem._src.data.plan.stream import State, Stream

__all__ = ["ResumePoints", "shrunk_input_message"]


class ResumePoints:
    """Saved states of a stream at some of the elements that were read from it.

    A transformation that reads ahead must save the position of its input some elements ago. It saves the
    state of the input every ``period`` elements, and resumes from the last state before the element it
    needs, skipping the elements between.

    Args:
        stream: The input that is read ahead.
        period: The number of elements between two saved states.
    """

    def __init__(self, stream: Stream, period: int) -> None:
        self._stream = stream
        self._period = max(1, period)
        self._states: deque[tuple[int, State]] = deque()
        self.read = 0

    def before_read(self, count: int = 1) -> None:
        """Saves the state if it is due; call it before ``count`` elements are read."""
        if not self._states or self.read - self._states[-1][0] >= self._period:
            self._states.append((self.read, self._stream.get_state()))
        self.read += count

    def clear(self) -> None:
        """Discards all states: no element that was read is needed again."""
        self._states.clear()

    def get_state(self, needed: int) -> State:
        """Returns the state from which element ``needed`` can be read again."""
        self.discard_before(needed)
        if not self._states:
            return {"at": self.read, "state": self._stream.get_state()}
        at, state = self._states[0]
        return {"at": at, "state": state}

    def discard_before(self, needed: int) -> None:
        """Discards the states that are not needed to resume at element ``needed`` or later."""
        while len(self._states) > 1 and self._states[1][0] <= needed:
            self._states.popleft()

    def resume(self, saved: State, needed: int) -> None:
        """Positions a new stream before element ``needed``.

        Raises:
            DataLossError: If the stream has become shorter since.
        """
        self._stream.set_state(saved["state"])
        self._states.append((saved["at"], saved["state"]))
        self.read = needed
        if self._stream.skip(needed - saved["at"]) != needed - saved["at"]:
            raise DataLossError(shrunk_input_message(needed))


def shrunk_input_message(needed: int) -> str:
    """Returns the error message for an input that has fewer elements than when it was saved."""
    return (
        f"The input has fewer than {needed} elements now; it had more when the iterator was saved."
    )
