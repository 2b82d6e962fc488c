"""``ClusterTestError``: the error of ``run_cluster``, with every task's failure."""

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
        task: The task.
        summary: A short description.
        exit_code: The exit code as a shell reports it.
        exception: The exception that the function raised, if it could be pickled.
        traceback: The traceback, or the tail of the task's output.
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
    """The failed tasks of ``run_cluster``, in the order in which they failed.

    >>> from stratagem._src.cluster import Task
    >>> from stratagem.testing import ClusterTestError, TaskFailure
    >>> raise ClusterTestError([TaskFailure(Task("worker", 1), "raised ValueError", 1)])
    Traceback (most recent call last):
    stratagem._src.testing.errors.ClusterTestError: 1 task failed.
    <BLANKLINE>
    worker 1 raised ValueError

    Attributes:
        failures: One for each task that failed or was still running at the deadline.
    """

    def __init__(self, failures: Sequence[TaskFailure]) -> None:
        number = f"{len(failures)} task{'s' if len(failures) > 1 else ''} failed."
        super().__init__("\n\n".join([number, *map(str, failures)]))
        self.failures: list[TaskFailure] = list(failures)

    def __reduce__(self) -> tuple[type[ClusterTestError], tuple[list[TaskFailure]]]:
        return type(self), (self.failures,)
