"""``Anchors``: resuming a stream that is read further ahead than what has been given out."""

from __future__ import annotations

from collections import deque

from stratagem._src.core.errors import DataLossError
from stratagem._src.data.plan.stream import State, Stream

__all__ = ["Anchors", "too_short"]


class Anchors:
    """States of a stream at some of the elements that were read from it.

    A step that reads ahead must save where its input stood some elements ago. It asks for the
    input's state every ``period`` elements, and resumes from the last state before the element it
    needs.

    Args:
        stream: The input that is read ahead.
        period: How many elements are read between two states.
    """

    def __init__(self, stream: Stream, period: int) -> None:
        self._stream = stream
        self._period = max(1, period)
        self._states: deque[tuple[int, State]] = deque()
        self.read = 0

    def before_read(self, count: int = 1) -> None:
        """Notes the state if it is due; call before elements are read, with their number."""
        if not self._states or self.read - self._states[-1][0] >= self._period:
            self._states.append((self.read, self._stream.get_state()))
        self.read += count

    def begin_again(self) -> None:
        """Forgets all states: nothing that was read will be read again."""
        self._states.clear()

    def get_state(self, needed: int) -> State:
        """Returns what is needed to read again from element number ``needed``."""
        self.forget_before(needed)
        if not self._states:
            return {"at": self.read, "state": self._stream.get_state()}
        at, state = self._states[0]
        return {"at": at, "state": state}

    def forget_before(self, needed: int) -> None:
        """Drops the states that no element from number ``needed`` on will ask for."""
        while len(self._states) > 1 and self._states[1][0] <= needed:
            self._states.popleft()

    def resume(self, saved: State, needed: int) -> None:
        """Makes a new stream stand before element number ``needed``.

        Raises:
            DataLossError: If the stream has become shorter since.
        """
        self._stream.set_state(saved["state"])
        self._states.append((saved["at"], saved["state"]))
        self.read = needed
        if self._stream.skip(needed - saved["at"]) != needed - saved["at"]:
            raise DataLossError(too_short(needed))


def too_short(needed: int) -> str:
    """Returns the message for an input that lost elements since it was saved."""
    return (
        f"The input has fewer than {needed} elements now; it had more when the iterator was saved."
    )
