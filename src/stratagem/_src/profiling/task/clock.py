"""Measures the offset between the clocks of processes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

__all__ = [
    "ClockOffset",
    "ClockSample",
    "now_ns",
    "offset_from_barriers",
    "offset_from_round_trips",
]


@dataclass(frozen=True)
class ClockOffset:
    """The offset of a process's clock from the leader's clock.

    Attributes:
        ahead_ns: The nanoseconds by which the clock is ahead.
        within_ns: The error bound of the measurement.
    """

    ahead_ns: int = 0
    within_ns: int = 0


class ClockSample(NamedTuple):
    """One round trip to another process's clock: the own time before and after, and its time between."""

    asked_ns: int
    answer_ns: int
    answered_ns: int


def offset_from_round_trips(samples: Sequence[ClockSample]) -> ClockOffset:
    """Returns the offset that the shortest round trip shows.

    >>> from stratagem._src.profiling.task.clock import ClockSample, offset_from_round_trips
    >>> offset_from_round_trips([ClockSample(0, 1400, 800), ClockSample(1000, 2050, 1100)])
    ClockOffset(ahead_ns=1000, within_ns=50)
    """
    asked, answer, answered = min(samples, key=lambda s: s.answered_ns - s.asked_ns)
    half = (answered - asked) // 2
    return ClockOffset(answer - asked - half, half)


def offset_from_barriers(own: Sequence[int], leading: Sequence[int]) -> ClockOffset:
    """Returns the offset from times that two processes recorded at the same barriers.

    >>> from stratagem._src.profiling.task.clock import offset_from_barriers
    >>> offset_from_barriers([1010, 2030, 3020], [0, 1000, 2000])
    ClockOffset(ahead_ns=1020, within_ns=10)
    """
    differences = [mine - theirs for mine, theirs in zip(own, leading, strict=True)]
    spread = max(differences) - min(differences)
    return ClockOffset(int(statistics.median(differences)), spread // 2)


def now_ns() -> int:
    """Returns the clock of the profiler's timestamps: Unix time in nanoseconds."""
    return time.time_ns()
