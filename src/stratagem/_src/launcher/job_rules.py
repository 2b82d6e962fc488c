"""``JobRules``: what a job does when a task fails or the job has to end."""

from __future__ import annotations

from dataclasses import dataclass, fields

from stratagem._src.cluster.errors import LaunchError

__all__ = ["JobRules"]


@dataclass(frozen=True)
class JobRules:
    """What a job does when a task fails or the job has to end.

    >>> from stratagem._src.launcher.job_rules import JobRules
    >>> JobRules(max_restarts=2).grace_seconds
    5.0

    Attributes:
        max_restarts: How often a failed job, or in a job with parameter servers a failed chief, is started
            again.
        max_worker_restarts: How often a worker or parameter server is started again in an attempt that can
            go on without.
        grace_seconds: How long tasks have between the signal that ends them and SIGKILL.
        min_workers: How few workers of an elastic job go on when others are lost; ``None`` if all
            must be there.

    Raises:
        LaunchError: If one of them is negative.
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
