"""``FlowControl``: limits the number of closures in flight on a worker."""

from __future__ import annotations

__all__ = ["FlowControl"]

_LOOKAHEAD_SECONDS = 0.02
_MAX_AHEAD = 256
_EWMA_WEIGHT = 0.1


class FlowControl:
    """Allows a worker its running closures, plus those that it will finish within 20 ms.

    Short closures are therefore sent in batches; long ones stay in the queue, for the first free worker.

    >>> flow = FlowControl(num_threads=2)
    >>> flow.max_in_flight
    2
    >>> for _ in range(50):
    ...     flow.record(seconds=0.001)
    >>> flow.max_in_flight
    20
    """

    def __init__(self, num_threads: int) -> None:
        self._num_threads = num_threads
        self._seconds = _LOOKAHEAD_SECONDS
        self.max_in_flight = num_threads

    def record(self, seconds: float) -> None:
        """Records the duration of a closure."""
        self._seconds += _EWMA_WEIGHT * (seconds - self._seconds)
        ahead = int(_LOOKAHEAD_SECONDS / max(self._seconds, 1e-6))
        self.max_in_flight = self._num_threads + min(ahead, _MAX_AHEAD)

    def on_stall(self) -> bool:
        """Resets the limit when no closure has finished for long; returns whether to recall some."""
        has_excess = self.max_in_flight > self._num_threads
        self._seconds = _LOOKAHEAD_SECONDS
        self.max_in_flight = self._num_threads
        return has_excess
