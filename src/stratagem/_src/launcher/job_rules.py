"""``JobRules``: the restart limits and grace period of a job."""

from __future__ import annotations

from dataclasses import dataclass, fields

from stratagem._src.cluster.errors import LaunchError

__all__ = ["JobRules"]


@dataclass(frozen=True)
class JobRules:
    """The restart limits and grace period of a job.

    >>> from stratagem._src.launcher.job_rules import JobRules
    >>> JobRules(max_restarts=2).grace_seconds
    5.0

    Attributes:
        max_restarts: The maximum number of restarts of a failed job, or of a failed chief in a job with
            parameter servers.
        max_worker_restarts: The maximum number of restarts of one worker or parameter server in an attempt
            that can continue without it.
        grace_seconds: The time between the signal that stops a task and SIGKILL.
        min_workers: The minimum number of workers with which an elastic job continues; ``None`` if the job
            is not elastic.

    Raises:
        LaunchError: If a value is negative.
    """

    max_restarts: int = 0
    max_worker_restarts: int = 10
    grace_seconds: float = 5.0
    min_workers: int | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            number = getattr(self, field.name)
            if number is not None and not number >= 0:
                flag = f"--{field.name.replace('_', '-')}"
                raise LaunchError(f"{flag} must not be negative, got {number}.")
