"""``Patience``: how long one has waited."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["Patience"]

_STOPPED_SECONDS = 2.0
"""Who looks at its clock several times a second, and sees so much gone, has not been waiting."""


class Patience:
    """The time that a wait has taken, without the time for which this process was stopped itself.

    Who was stopped knows nothing of the others when it wakes up, and has nobody to blame but itself.

    >>> seconds = iter([0.0, 0.5, 70.5, 71.0])
    >>> patience = Patience(clock=lambda: next(seconds))
    >>> patience.seconds(), patience.seconds(), patience.seconds()
    (0.5, 0.5, 1.0)

    Args:
        clock: Tells the time, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last = clock()
        self._waited = 0.0

    def seconds(self) -> float:
        """Returns how long the wait has taken so far; to be asked often."""
        now = self._clock()
        passed, self._last = now - self._last, now
        if passed < _STOPPED_SECONDS:
            self._waited += passed
        return self._waited
