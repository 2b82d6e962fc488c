"""``WaitingNotice``: decides when to log that a wait takes long."""

from __future__ import annotations

import time

__all__ = ["WaitingNotice"]

_FIRST_SECONDS = 5.0
_LATER_SECONDS = 30.0


class WaitingNotice:
    """Decides when to log a long wait: after a few seconds, and then at longer intervals.

    >>> from stratagem._src.core.waiting_notice import WaitingNotice
    >>> WaitingNotice().is_due()
    False
    >>> WaitingNotice(first_seconds=0.0).is_due()
    True
    """

    def __init__(
        self, first_seconds: float = _FIRST_SECONDS, later_seconds: float = _LATER_SECONDS
    ) -> None:
        self._began = time.monotonic()
        self._next = self._began + first_seconds
        self._later_seconds = later_seconds

    @property
    def next_moment(self) -> float:
        """When the next notice is due, on the monotonic clock."""
        return self._next

    @property
    def seconds(self) -> float:
        """Seconds since the wait started."""
        return time.monotonic() - self._began

    def is_due(self) -> bool:
        """Returns whether a notice is due now; if so, schedules the next one."""
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + self._later_seconds
        return True
