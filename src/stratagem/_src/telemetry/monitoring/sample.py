"""``Sample``: the measurements that a task sends once a second."""

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
    """The progress of a task since the previous sample, and its current state.

    >>> from stratagem._src.telemetry.measurement.interval import Interval
    >>> from stratagem._src.telemetry.monitoring.sample import Sample
    >>> sample = Sample("worker 0", 4711, 12.5, 10, 320, Interval(steps=2, seconds=0.5))
    >>> Sample.from_bytes(sample.to_bytes()) == sample
    True

    Attributes:
        task: The name of the task.
        process: Its process id, which changes with a restart.
        time: The Unix time on its clock.
        steps: The number of steps of this process.
        examples: The number of examples it has drawn.
        interval: The steps, examples and times since the previous sample.
        reported: The newest metrics of the user, such as the loss.
        memory: The resident memory of the process in bytes, if known.
        figures: The metrics of its components, such as a coordinator's queue.
        activity: What the task is doing instead of steps, such as ``compiling``; may be empty.
        cpu: The CPU cores that the process has used on average since the previous sample.
        notes: Warnings, errors and recoveries since the previous sample.
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
    activity: str = ""
    cpu: float = 0.0
    notes: list[dict[str, Any]] = field(default_factory=list)

    def to_bytes(self) -> bytes:
        """Returns the sample as JSON."""
        return json.dumps(dataclasses.asdict(self)).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Sample:
        """Returns the sample that ``to_bytes`` encoded.

        Raises:
            InvalidArgumentError: If the data is not a sample.
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
                "A sample must come from a task of the same version of stratagem, but one could not be "
                f"decoded ({type(error).__name__}: {error})."
            ) from None
