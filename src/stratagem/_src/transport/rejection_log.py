"""``RejectionLog``: rate-limited logging of refused connections."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

__all__ = ["RejectionLog"]

_LOG_INTERVAL = 1.0


class RejectionLog:
    """Logs at most one refused connection per second, and the number of others.

    Anyone who reaches the port can cause refusals at any rate, which must not fill the disk.

    Args:
        log: The logger.
        clock: Returns the time in seconds.
    """

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._lock = threading.Lock()
        self._muted_until = float("-inf")
        self._suppressed = 0

    def note(self, peer: str, reason: str) -> None:
        """Logs or counts a refused connection."""
        now = self._clock()
        with self._lock:
            if now < self._muted_until:
                self._suppressed += 1
                return
            suppressed, self._suppressed = self._suppressed, 0
            self._muted_until = now + _LOG_INTERVAL
        more = f" (and {suppressed} more since the last such line)" if suppressed else ""
        self._log.warning("refused a connection from %s: %s%s", peer, reason, more)

    def close(self) -> None:
        """Logs the number of refusals that were not logged yet."""
        with self._lock:
            suppressed, self._suppressed = self._suppressed, 0
        if suppressed:
            self._log.warning("refused %d more connections", suppressed)
