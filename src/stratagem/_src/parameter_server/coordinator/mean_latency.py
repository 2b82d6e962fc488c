"""``MeanLatency``: how long functions take from being scheduled to having returned."""

from __future__ import annotations

__all__ = ["MeanLatency"]


class MeanLatency:
    """The mean since it was last asked for; the one before if nothing came since.

    >>> from stratagem._src.parameter_server.coordinator.mean_latency import MeanLatency
    >>> latency = MeanLatency()
    >>> latency.add(1.0), latency.add(3.0)
    (None, None)
    >>> latency.take(), latency.take()
    (2.0, 2.0)
    """

    def __init__(self) -> None:
        self._seconds = 0.0
        self._number = 0
        self._mean = 0.0

    def add(self, seconds: float) -> None:
        """Takes in how long one took."""
        self._seconds += seconds
        self._number += 1

    def take(self) -> float:
        """Returns the mean, and begins anew."""
        if self._number:
            self._mean = self._seconds / self._number
        self._seconds, self._number = 0.0, 0
        return self._mean
