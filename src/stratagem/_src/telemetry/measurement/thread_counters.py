"""``ThreadCounters``: the measurements of one thread, summed up."""

from __future__ import annotations

import math
import threading

from stratagem._src.telemetry.measurement.interval import Interval

__all__ = ["ThreadCounters"]

_ADDED = ("steps", "program_seconds", "input_seconds", "communication_seconds", "examples")

# Above this rate, steps are so short that reading the clock twice per step would be measurable. Then only
# one step in 7 is timed: a prime, so that of a repeating sequence of steps not always the same are timed.
_MAX_TIMED_STEPS_PER_SECOND = 5000
_ONE_IN = 7


class ThreadCounters:
    """Counters that their own thread writes and one other thread reads.

    Neither waits for the other: the sums only grow, and the reader takes the differences. An update that
    the reader sees only partially is complete in its next read.

    >>> from stratagem._src.telemetry.measurement.interval import Interval
    >>> from stratagem._src.telemetry.measurement.thread_counters import ThreadCounters
    >>> counters, interval = ThreadCounters(), Interval()
    >>> counters.steps += 2
    >>> counters.move_to(interval, seconds=1.0)
    >>> interval.steps
    2

    Attributes:
        thread: The thread that writes the counters.
        in_step: Whether a step is running; a nested step is not counted.
        in_draw: Whether an element is being drawn; a nested draw is not counted.
        first_start: The start of the first step.
        last_end: The end of the latest timed step.
        untimed: The number of following steps that are counted but not timed.
        time_one_in: One in this many steps is timed; its time is added for all of them.
    """

    __slots__ = (
        *_ADDED,
        "_moved",
        "first_start",
        "in_draw",
        "in_step",
        "last_end",
        "thread",
        "time_one_in",
        "untimed",
    )

    def __init__(self) -> None:
        self.thread = threading.current_thread()
        self.in_step = False
        self.in_draw = False
        self.first_start = math.inf
        self.last_end = -math.inf
        self.untimed = 0
        self.time_one_in = 1
        self.steps = 0
        self.program_seconds = 0.0
        self.input_seconds = 0.0
        self.communication_seconds = 0.0
        self.examples = 0
        self._moved = Interval()

    def move_to(self, interval: Interval, seconds: float) -> None:
        """Adds the counts since the last call, ``seconds`` ago, to an interval. For one reader thread."""
        steps = self.steps - self._moved.steps
        for name in _ADDED:
            now = getattr(self, name)
            setattr(interval, name, getattr(interval, name) + now - getattr(self._moved, name))
            setattr(self._moved, name, now)
        if steps > _MAX_TIMED_STEPS_PER_SECOND * seconds:
            self.time_one_in = _ONE_IN
        else:
            self.time_one_in, self.untimed = 1, 0
