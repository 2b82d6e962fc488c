"""How clocks of different processes are compared."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

__all__ = [
    "ClockDifference",
    "ClockQuestion",
    "now_ns",
    "quickest",
    "simultaneous",
]


@dataclass(frozen=True)
class ClockDifference:
    """By how much a process's clock is ahead of that of the process that leads.

    Attributes:
        ahead_ns: Nanoseconds.
        within_ns: How far the truth may be from that, as far as the measurement shows.
    """

    ahead_ns: int = 0
    within_ns: int = 0


class ClockQuestion(NamedTuple):
    """What was asked of another process's clock: the own time before and after, and its answer between."""

    asked_ns: int
    answer_ns: int
    answered_ns: int


def quickest(questions: Sequence[ClockQuestion]) -> ClockDifference:
    """Returns the difference as the question shows it whose answer came back soonest.

    >>> from stratagem._src.profiling.task.clock import ClockQuestion, quickest
    >>> quickest([ClockQuestion(0, 1400, 800), ClockQuestion(1000, 2050, 1100)])
    ClockDifference(ahead_ns=1000, within_ns=50)
    """
    asked, answer, answered = min(questions, key=lambda q: q.answered_ns - q.asked_ns)
    half = (answered - asked) // 2
    return ClockDifference(answer - asked - half, half)


def simultaneous(own: Sequence[int], leading: Sequence[int]) -> ClockDifference:
    """Returns the difference as moments show it that two processes noted at about the same time.

    >>> from stratagem._src.profiling.task.clock import simultaneous
    >>> simultaneous([1010, 2030, 3020], [0, 1000, 2000])
    ClockDifference(ahead_ns=1020, within_ns=10)
    """
    differences = [mine - theirs for mine, theirs in zip(own, leading, strict=True)]
    spread = max(differences) - min(differences)
    return ClockDifference(int(statistics.median(differences)), spread // 2)


def now_ns() -> int:
    """Returns the time by which the profiler dates what it records, in nanoseconds since 1970."""
    return time.time_ns()
