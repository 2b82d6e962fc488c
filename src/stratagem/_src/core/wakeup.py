"""``Wakeup``: a one-shot event that is safe with signal handlers."""

from __future__ import annotations

import contextlib
import threading

__all__ = ["Wakeup"]


class Wakeup:
    """A one-shot event for one waiting call, robust against signal handlers.

    Not ``threading.Event`` or ``Semaphore``: a signal handler that interrupts a wait and waits for the same
    object deadlocks, and an interrupt sometimes becomes "release unlocked lock". Not ``queue.SimpleQueue``:
    if a handler runs, or the process is stopped, until the timeout is over, ``get(timeout=...)`` never
    returns (Python 3.11).

    >>> from stratagem._src.core.wakeup import Wakeup
    >>> wakeup = Wakeup()
    >>> wakeup.wait(0.01)
    False
    >>> wakeup.wake()
    >>> wakeup.wait(10)
    True
    """

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def wait(self, seconds: float) -> bool:
        """Waits up to ``seconds``; returns whether it was woken."""
        return self._lock.acquire(timeout=seconds)

    def wake(self) -> None:
        """Wakes the current or the next wait."""
        with contextlib.suppress(RuntimeError):  # woken already
            self._lock.release()
