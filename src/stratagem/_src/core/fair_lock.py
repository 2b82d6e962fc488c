"""``FairLock``: a lock that threads get in the order in which they asked for it."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from stratagem._src.core.waiting_notice import WaitingNotice
from stratagem._src.core.wakeup import Wakeup

__all__ = ["FairLock"]

Result = TypeVar("Result")

_POLL_SECONDS = 1.0


class _Ticket:
    """A thread's place in the queue."""

    __slots__ = ("thread", "wakeup")

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.wakeup = Wakeup()


class FairLock:
    """A lock with a queue (FIFO).

    ``threading.Lock`` goes to whichever thread runs first: one that releases it and takes it again at once
    keeps the others out for as long as it does so. A thread that asks twice would wait for itself, so
    it asks ``is_wanted_here`` first.

    >>> from stratagem._src.core.fair_lock import FairLock
    >>> lock = FairLock()
    >>> lock.run(lock.is_wanted_here)
    True
    """

    def __init__(self) -> None:
        # The first ticket holds the lock. Each operation on a deque is atomic, so no other lock is needed,
        # which an interrupt could leave taken.
        self._queue: deque[_Ticket] = deque()

    @property
    def is_taken(self) -> bool:
        """Whether a thread holds it."""
        return bool(self._queue)

    def is_wanted_here(self) -> bool:
        """Returns whether this thread holds the lock or is waiting for it."""
        thread = threading.get_ident()
        return any(ticket.thread == thread for ticket in tuple(self._queue))

    def run(
        self, call: Callable[[], Result], on_long_wait: Callable[[float], None] | None = None
    ) -> Result:
        """Returns what ``call`` returns, which is called while this thread holds the lock.

        A function and no context manager of Python's: an interrupt could keep that from being left.

        Args:
            call: What to call.
            on_long_wait: Called now and then with the seconds that this thread has waited.
        """
        ticket = _Ticket()
        try:
            self._queue.append(ticket)
            if self._queue[0] is not ticket:
                self._wait(ticket, on_long_wait)
            return call()
        finally:
            # Again, if an interrupt arrives meanwhile.
            try:
                self._leave(ticket)
            except BaseException:
                self._leave(ticket)
                raise

    def _wait(self, ticket: _Ticket, on_long_wait: Callable[[float], None] | None) -> None:
        notice = WaitingNotice()
        while self._queue[0] is not ticket:
            # A thread that was interrupted while it left may have woken nobody.
            ticket.wakeup.wait(_POLL_SECONDS)
            if on_long_wait is not None and notice.is_due():
                on_long_wait(notice.seconds)

    def _leave(self, ticket: _Ticket) -> None:
        with contextlib.suppress(ValueError):
            self._queue.remove(ticket)
        with contextlib.suppress(IndexError):
            self._queue[0].wakeup.wake()
