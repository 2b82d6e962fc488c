"""``CommonBoundary``: a place in every worker's loop that none of them has passed yet."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

from stratagem._src.control_plane.failure_detector import ClusterWatch
from stratagem._src.control_plane.membership_client import Call

__all__ = ["BoundaryLine", "ClusterLine", "CommonBoundary", "LonelyLine"]


class BoundaryLine(Protocol):
    """How a worker reaches all workers, itself included."""

    def call(self, topic: str, why: str) -> None:
        """Tells all workers of something."""

    def listen(self, listener: Callable[[Call], None]) -> None:
        """Has ``listener`` called with what somebody tells all, in another thread perhaps."""

    def ignore(self, listener: Callable[[Call], None]) -> None:
        """Has ``listener`` called no more."""

    def answer(self, key: str, value: int) -> None:
        """Gives this worker's answer, without waiting."""

    def take_answers(self, key: str) -> list[Any]:
        """Waits for the answers of all workers."""


class CommonBoundary:
    """Brings all workers to a halt at the same pass of their loops, when one of them asks for it.

    Every worker *comes* to a boundary in each pass of its loop. When one calls, each answers at once,
    from a thread of its own, how many boundaries it has passed, and passes no further one before it
    knows the answers of all. The largest of them is the number of the boundary that is common: nobody
    has passed it, and everybody comes to it. No worker waits for another's loop, so those that still
    wait for each other in a step end that step.

    Until somebody calls, coming to a boundary costs a lock and talks to nobody. Boundaries are counted
    from when the object was made, so all workers make it at the same place of their programs.

    >>> from stratagem._src.control_plane.coordinated_stop import CommonBoundary, LonelyLine
    >>> boundary = CommonBoundary(LonelyLine(), "preemption")
    >>> boundary.come()
    False
    >>> boundary.call("SIGTERM")
    >>> boundary.come(), boundary.come()
    (True, False)

    Args:
        line: How the workers are reached.
        topic: What the calls are about.
    """

    def __init__(self, line: BoundaryLine, topic: str) -> None:
        self._line = line
        self._topic = topic
        self._lock = threading.Lock()
        self._round = 0
        self._passed = 0
        self._is_called = False
        self._is_called_early = False
        self._common: int | None = None
        line.listen(self._hear)

    def call(self, why: str) -> None:
        """Asks all workers to halt together; if somebody has asked already, for the same halt."""
        with self._lock:
            key = self._key(self._round)
        self._line.call(key, why)

    def come(self) -> bool:
        """Comes to the next boundary; returns whether all workers halt here.

        Raises:
            UnavailableError: If another worker is gone, stopped, or does not answer in time.
        """
        with self._lock:
            if not self._is_called:
                self._passed += 1
                return False
            key = self._key(self._round)
        if self._common is None:
            self._common = max(self._line.take_answers(key))
        with self._lock:
            is_common = self._passed == self._common
            self._passed += 1
            passed = self._passed
            if is_common:
                self._round += 1
                self._common = None
                self._is_called, self._is_called_early = self._is_called_early, False
            is_called_again = is_common and self._is_called
            next_key = self._key(self._round)
        if is_called_again:
            self._line.answer(next_key, passed)
        return is_common

    def close(self) -> None:
        """Hears no more calls."""
        self._line.ignore(self._hear)

    def _key(self, number: int) -> str:
        return f"{self._topic}/{number}"

    def _hear(self, call: Call) -> None:
        with self._lock:
            # A worker that has halted already may call for the next halt before this one has halted.
            if call.topic == self._key(self._round + 1):
                self._is_called_early = True
                return
            # Calls for a halt that has been are late; further ones for the next are heard already.
            if call.topic != self._key(self._round) or self._is_called:
                return
            self._is_called = True
            passed = self._passed
        self._line.answer(call.topic, passed)


class ClusterLine:
    """The workers of a cluster.

    Args:
        watch: What watches over them.
        what: What is waited for, in messages.
    """

    def __init__(self, watch: ClusterWatch, what: str) -> None:
        self._watch = watch
        self._what = what
        self.call = watch.line.call
        self.listen = watch.line.listen
        self.ignore = watch.line.ignore

    def answer(self, key: str, value: int) -> None:
        """Gives this worker's answer, without waiting."""
        self._watch.line.put(key, value)

    def take_answers(self, key: str) -> list[Any]:
        """Waits for the answers of all workers."""
        return self._watch.take_answers(key, self._what)


class LonelyLine:
    """A process that is the only worker."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[Call], None]] = []
        self._answer = 0

    def call(self, topic: str, why: str) -> None:
        """Tells this worker of something."""
        for listener in list(self._listeners):
            listener(Call(topic, 0, why))

    def listen(self, listener: Callable[[Call], None]) -> None:
        """Has ``listener`` called with every call from now on."""
        self._listeners.append(listener)

    def ignore(self, listener: Callable[[Call], None]) -> None:
        """Has ``listener`` called no more."""
        self._listeners.remove(listener)

    def answer(self, key: str, value: int) -> None:
        """Gives this worker's answer."""
        self._answer = value

    def take_answers(self, key: str) -> list[Any]:
        """Returns the answer of this worker."""
        return [self._answer]
