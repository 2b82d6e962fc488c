"""``TaskCounts``: the number of tasks of each job on one node."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from stratagem._src.cluster.errors import LaunchError

__all__ = ["JOBS", "TaskCounts"]

JOBS = ("chief", "worker", "ps", "evaluator")


@dataclass(frozen=True)
class TaskCounts:
    """The number of tasks of each job on one node.

    >>> from stratagem._src.launcher.task_counts import TaskCounts
    >>> list(TaskCounts(workers=2, chief=True).jobs())
    ['chief', 'worker', 'worker']

    Raises:
        LaunchError: If a number is negative.
    """

    workers: int = 1
    ps: int = 0
    chief: bool = False
    evaluator: bool = False

    def __post_init__(self) -> None:
        for name in ("workers", "ps"):
            number = getattr(self, name)
            if isinstance(number, bool) or not isinstance(number, int) or number < 0:
                raise LaunchError(f"{name} must be an integer >= 0, got {number!r}.")

    def check_not_empty(self) -> None:
        """Raises ``LaunchError`` if there is nothing to run."""
        if not any(self.jobs()):
            raise LaunchError(
                "A node must run at least one task, got no worker, ps, chief or evaluator. "
                "Give it a worker."
            )

    @classmethod
    def of_one(cls, job: str) -> Self:
        """Returns the counts of a node that runs a single task of this job."""
        workers, ps = int(job == "worker"), int(job == "ps")
        return cls(workers, ps, chief=job == "chief", evaluator=job == "evaluator")

    def jobs(self) -> Iterator[str]:
        """Yields the job of every task, chief first."""
        numbers = (int(self.chief), self.workers, self.ps, int(self.evaluator))
        for job, number in zip(JOBS, numbers, strict=True):
            yield from itertools.repeat(job, number)

    @property
    def num_ports(self) -> int:
        """The number of tasks that listen; nothing connects to an evaluator."""
        return int(self.chief) + self.workers + self.ps
