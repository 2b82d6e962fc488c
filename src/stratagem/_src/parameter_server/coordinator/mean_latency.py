"""``MeanLatency``: the mean time from scheduling a function to its return."""

from __future__ import annotations

__all__ = ["MeanLatency"]


class MeanLatency:
    """The mean latency since the last ``take``; the previous mean if there was none since.

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
        """Adds the latency of one function."""
        self._seconds += seconds
        self._number += 1

    def take(self) -> float:
        """Returns the mean, and resets it."""
        if self._number:
            self._mean = self._seconds / self._number
        self._seconds, self._number = 0.0, 0
        return self._mean
