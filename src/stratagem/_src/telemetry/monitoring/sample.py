"""``Sample``: what a task tells of itself once a second."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.telemetry.measurement.interval import Interval

__all__ = ["Sample"]


@dataclass(frozen=True)
class Sample:
    """What a task has done since the sample before, and how it is.

    >>> from stratagem._src.telemetry.measurement.interval import Interval
    >>> from stratagem._src.telemetry.monitoring.sample import Sample
    >>> sample = Sample("worker 0", 4711, 12.5, 10, 320, Interval(steps=2, seconds=0.5))
    >>> Sample.from_bytes(sample.to_bytes()) == sample
    True

    Attributes:
        task: Which task.
        process: Its process; another one after a restart.
        time: When, in seconds since 1970 on its clock.
        steps: How many steps this process has made.
        examples: How many examples it has drawn.
        interval: Both, and where the time went, since the sample before.
        reported: The newest figures of the user, such as the loss.
        memory: How many bytes of the machine the process occupies, if that is known.
        figures: What parts of it say of themselves, such as a coordinator of its queue.
        notes: Warnings, errors and recoveries since the sample before.
    """

    task: str
    process: int
    time: float
    steps: int
    examples: int
    interval: Interval = field(default_factory=Interval)
    reported: dict[str, float] = field(default_factory=dict)
    memory: int | None = None
    figures: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: list[dict[str, Any]] = field(default_factory=list)

    def to_bytes(self) -> bytes:
        """Returns it as JSON."""
        return json.dumps(dataclasses.asdict(self)).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Sample:
        """Returns what ``to_bytes`` wrote.

        Raises:
            InvalidArgumentError: If something else wrote it.
        """
        try:
            fields = json.loads(data)
            joint = [
                (int(number), float(seconds)) for number, seconds in fields["interval"]["joint"]
            ]
            interval = Interval(**{**fields["interval"], "joint": joint})
            return cls(**{**fields, "interval": interval})
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidArgumentError(
                "A sample must come from a task of the same version of stratagem, but one was not "
                f"understood ({type(error).__name__}: {error})."
            ) from None
