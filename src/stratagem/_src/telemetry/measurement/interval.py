"""``Interval``: the measurements of a task over about one second."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Interval"]


@dataclass
class Interval:
    """The sums of all measurements between two samples.

    Attributes:
        steps: The number of steps that ended.
        seconds: The time from the end of the previous interval's last step to the end of this interval's
            last step; without a step, the time between the samples.
        program_seconds: The run time of the steps, including communication and waiting for other workers.
        input_seconds: The time spent waiting for input.
        communication_seconds: The time spent fetching from and sending to parameter servers.
        examples: The number of examples drawn.
        joint: The multi-process programs that all workers run together: the number and seconds of each.
    """

    steps: int = 0
    seconds: float = 0.0
    program_seconds: float = 0.0
    input_seconds: float = 0.0
    communication_seconds: float = 0.0
    examples: int = 0
    joint: list[tuple[int, float]] = field(default_factory=list)
