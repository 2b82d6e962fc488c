"""``FairLock``: a FIFO lock."""

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
    """A lock that threads get in the order in which they requested it (FIFO).

    ``threading.Lock`` is not fair: a thread that releases it and acquires it again at once can starve the
    others. ``FairLock`` is not reentrant: a thread that may hold it already must check ``is_wanted_here``
    first.

    >>> from stratagem._src.core.fair_lock import FairLock
    >>> lock = FairLock()
    >>> lock.run(lock.is_wanted_here)
    True
    """

    def __init__(self) -> None:
        # The first ticket holds the lock. Operations on a deque are atomic, so no inner lock is needed: an
        # interrupt could leave that one locked.
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
        """Calls ``call`` while this thread holds the lock, and returns its result.

        A function and not a context manager, because an interrupt could skip ``__exit__``.

        Args:
            call: The function to call.
            on_long_wait: Called from time to time with the seconds that this thread has waited.
        """
        ticket = _Ticket()
        try:
            self._queue.append(ticket)
            if self._queue[0] is not ticket:
                self._wait(ticket, on_long_wait)
            return call()
        finally:
            # Once more if an interrupt (Ctrl-C) arrives during the first attempt.
            try:
                self._leave(ticket)
            except BaseException:
                self._leave(ticket)
                raise

    def _wait(self, ticket: _Ticket, on_long_wait: Callable[[float], None] | None) -> None:
        notice = WaitingNotice()
        while self._queue[0] is not ticket:
            # With a timeout: a thread that was interrupted in `_leave` may not have woken the next one.
            ticket.wakeup.wait(_POLL_SECONDS)
            if on_long_wait is not None and notice.is_due():
                on_long_wait(notice.seconds)

    def _leave(self, ticket: _Ticket) -> None:
        with contextlib.suppress(ValueError):
            self._queue.remove(ticket)
        with contextlib.suppress(IndexError):
            self._queue[0].wakeup.wake()
