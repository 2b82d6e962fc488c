"""``SuspendAwareTimer``: measures a wait without the time for which this process was suspended."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["SuspendAwareTimer"]

_STOPPED_SECONDS = 2.0
"""A gap this long between polls means that the process was suspended (SIGSTOP, VM pause)."""


class SuspendAwareTimer:
    """Measures how long a wait has taken, without the time for which this process was suspended.

    A process that resumes after a suspension knows nothing recent about the others, and must not blame them
    for the time that passed.

    >>> seconds = iter([0.0, 0.5, 70.5, 71.0])
    >>> timer = SuspendAwareTimer(clock=lambda: next(seconds))
    >>> timer.seconds(), timer.seconds(), timer.seconds()
    (0.5, 0.5, 1.0)

    Args:
        clock: Returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last = clock()
        self._waited = 0.0

    def seconds(self) -> float:
        """Returns the duration of the wait so far. Call it several times a second."""
        now = self._clock()
        passed, self._last = now - self._last, now
        if passed < _STOPPED_SECONDS:
            self._waited += passed
        return self._waited
