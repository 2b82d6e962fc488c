"""``RefusalLog``: tells of refused strangers, however many come."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

__all__ = ["RefusalLog"]

_SECONDS_BETWEEN_LINES = 1.0


class RefusalLog:
    """Logs one refusal a second at most, and how many there were besides.

    Anybody who reaches the port can be refused as often as it likes: that must not fill a disk.

    Args:
        log: Where to.
        clock: Tells the time, in seconds.
    """

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._lock = threading.Lock()
        self._silent_until = float("-inf")
        self._untold = 0

    def note(self, peer: str, reason: str) -> None:
        """Notes that a stranger was refused."""
        now = self._clock()
        with self._lock:
            if now < self._silent_until:
                self._untold += 1
                return
            untold, self._untold = self._untold, 0
            self._silent_until = now + _SECONDS_BETWEEN_LINES
        more = f" (and {untold} more since the last such line)" if untold else ""
        self._log.warning("refused a connection from %s: %s%s", peer, reason, more)

    def close(self) -> None:
        """Tells of those that no line has told of yet."""
        with self._lock:
            untold, self._untold = self._untold, 0
        if untold:
            self._log.warning("refused %d more connections", untold)
