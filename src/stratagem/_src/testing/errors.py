"""``ClusterTestError``: what ``run_cluster`` raises, with every task's failure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stratagem._src.cluster.leadership import Task
from stratagem._src.core.errors import StratagemError

__all__ = ["ClusterTestError", "TaskFailure"]


@dataclass(frozen=True)
class TaskFailure:
    """How one task failed.

    >>> from stratagem._src.cluster import Task
    >>> from stratagem.testing import TaskFailure
    >>> TaskFailure(Task("worker", 1), "was killed by SIGKILL", exit_code=137).exit_code
    137

    Attributes:
        task: Which one.
        summary: What happened, in a few words.
        exit_code: The code a shell would give.
        exception: What the function raised, if it raised and that could be pickled.
        traceback: Where it raised, or the end of what the task printed.
    """

    task: Task
    summary: str
    exit_code: int
    exception: BaseException | None = None
    traceback: str = ""

    def __str__(self) -> str:
        text = f"{self.task} {self.summary}"
        return f"{text}\n{self.traceback.rstrip()}" if self.traceback.strip() else text


class ClusterTestError(StratagemError, RuntimeError):
    """Tasks of ``run_cluster`` that failed, the first to fail first.

    >>> from stratagem._src.cluster import Task
    >>> from stratagem.testing import ClusterTestError, TaskFailure
    >>> raise ClusterTestError([TaskFailure(Task("worker", 1), "raised ValueError", 1)])
    Traceback (most recent call last):
    stratagem._src.testing.errors.ClusterTestError: 1 task failed.
    <BLANKLINE>
    worker 1 raised ValueError

    Attributes:
        failures: One for each task that failed, or was still running at the deadline.
    """

    def __init__(self, failures: Sequence[TaskFailure]) -> None:
        number = f"{len(failures)} task{'s' if len(failures) > 1 else ''} failed."
        super().__init__("\n\n".join([number, *map(str, failures)]))
        self.failures: list[TaskFailure] = list(failures)

    def __reduce__(self) -> tuple[type[ClusterTestError], tuple[list[TaskFailure]]]:
        return type(self), (self.failures,)
