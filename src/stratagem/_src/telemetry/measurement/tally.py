"""``Tally``: what one thread measures, added up."""

from __future__ import annotations

import math
import threading

from stratagem._src.telemetry.measurement.interval import Interval

__all__ = ["Tally"]

_ADDED = ("steps", "program_seconds", "input_seconds", "communication_seconds", "examples")

# Steps so short that reading the clock twice could be measured. A prime number, so that the steps that are
# timed are not always the same ones of a round of steps.
_MANY_STEPS = 5000
_ONE_IN = 7


class Tally:
    """What the thread that makes it has measured; that thread writes, one other reads.

    Neither waits for the other: the sums only grow, and the reader takes by how much. What it meets half
    written it finds the next time.

    >>> from stratagem._src.telemetry.measurement.interval import Interval
    >>> from stratagem._src.telemetry.measurement.tally import Tally
    >>> tally, interval = Tally(), Interval()
    >>> tally.steps += 2
    >>> tally.move_to(interval, seconds=1.0)
    >>> interval.steps
    2

    Attributes:
        thread: Whose it is.
        in_step: Whether it makes a step: a step within a step is none.
        in_draw: Whether it draws an element: nor is a draw within a draw.
        first_start: When its first step began.
        last_end: When the newest of its steps that were timed ended.
        untimed: How many steps to come are counted, but not timed.
        time_one_in: One of how many steps is timed; its time is added for all of them.
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
        """Adds to an interval what has come since the last call, that long ago. For one thread."""
        steps = self.steps - self._moved.steps
        for name in _ADDED:
            now = getattr(self, name)
            setattr(interval, name, getattr(interval, name) + now - getattr(self._moved, name))
            setattr(self._moved, name, now)
        if steps > _MANY_STEPS * seconds:
            self.time_one_in = _ONE_IN
        else:
            self.time_one_in, self.untimed = 1, 0
