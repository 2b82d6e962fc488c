"""``Pace``: how many closures a worker is given ahead of time."""

from __future__ import annotations

__all__ = ["Pace"]

_SECONDS_AHEAD = 0.02
_MOST_AHEAD = 256
_WEIGHT_OF_NEWEST = 0.1


class Pace:
    """Lets a worker have what it runs, and as much again as it will have finished in a moment.

    Quick closures so travel many at a time; slow ones stay in the queue, for whoever is free first.

    >>> pace = Pace(num_threads=2)
    >>> pace.most_in_flight
    2
    >>> for _ in range(50):
    ...     pace.note(seconds=0.001)
    >>> pace.most_in_flight
    20
    """

    def __init__(self, num_threads: int) -> None:
        self._num_threads = num_threads
        self._seconds = _SECONDS_AHEAD
        self.most_in_flight = num_threads

    def note(self, seconds: float) -> None:
        """Takes in how long a closure took."""
        self._seconds += _WEIGHT_OF_NEWEST * (seconds - self._seconds)
        ahead = int(_SECONDS_AHEAD / max(self._seconds, 1e-6))
        self.most_in_flight = self._num_threads + min(ahead, _MOST_AHEAD)

    def stand_still(self) -> bool:
        """Takes in that nothing was finished for long; returns whether closures wait in vain."""
        waited_in_vain = self.most_in_flight > self._num_threads
        self._seconds = _SECONDS_AHEAD
        self.most_in_flight = self._num_threads
        return waited_in_vain
