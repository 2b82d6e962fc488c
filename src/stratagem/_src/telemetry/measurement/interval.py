"""``Interval``: what a task did in about a second."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Interval"]


@dataclass
class Interval:
    """What was measured between two looks, added up.

    Attributes:
        steps: How many steps ended.
        seconds: From the end of the last step before to the end of the last of these; without a step from
            look to look.
        program_seconds: How long they ran, with what they sent and fetched and their waiting for others.
        input_seconds: How long their input was waited for.
        communication_seconds: How long they fetched from parameter servers and sent to them.
        examples: How many examples were drawn.
        joint: The programs that all workers run together: the number and the seconds of each.
    """

    steps: int = 0
    seconds: float = 0.0
    program_seconds: float = 0.0
    input_seconds: float = 0.0
    communication_seconds: float = 0.0
    examples: int = 0
    joint: list[tuple[int, float]] = field(default_factory=list)
