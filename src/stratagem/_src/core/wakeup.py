"""``Wakeup``: how one thread waits until another wakes it, or some time has passed."""

from __future__ import annotations

import contextlib
import threading

__all__ = ["Wakeup"]


class Wakeup:
    """What one call waits for, whatever signal handlers do meanwhile.

    Not an event or a semaphore of ``threading``: a handler that interrupts a wait for one, and waits for
    the same, waits for ever; and an interrupt becomes "release unlocked lock" now and then. Nor
    ``queue.SimpleQueue``: if a handler runs, or the process is stopped, until the time is over,
    ``get(timeout=...)`` waits for ever (Python 3.11).

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
        """Waits, and returns whether it was woken."""
        return self._lock.acquire(timeout=seconds)

    def wake(self) -> None:
        """Wakes the one that waits, or will."""
        with contextlib.suppress(RuntimeError):  # woken already
            self._lock.release()
