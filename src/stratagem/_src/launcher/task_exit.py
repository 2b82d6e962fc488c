"""``TaskExit``: how the process of one task exited."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from stratagem._src.cluster.leadership import Task

__all__ = ["TaskExit", "exit_code_of"]


def exit_code_of(returncode: int) -> int:
    """Returns the exit code as a shell reports it: 128 + N if signal N ended the process.

    >>> from stratagem._src.launcher.task_exit import exit_code_of
    >>> exit_code_of(3), exit_code_of(-9)
    (3, 137)
    """
    return returncode if returncode >= 0 else 128 - returncode


@dataclass(frozen=True)
class TaskExit:
    """How the process of one task exited.

    >>> from stratagem._src.cluster import Task
    >>> from stratagem._src.launcher.task_exit import TaskExit
    >>> TaskExit(Task("worker", 1), -9).describe()
    'worker 1 was killed by SIGKILL'

    Attributes:
        task: The task.
        returncode: Its exit code, or the negative number of the signal that ended it.
        by_launcher: Whether the launcher stopped it.
        output: The tail of its output.
    """

    task: Task
    returncode: int
    by_launcher: bool = False
    output: str = ""

    @property
    def failed(self) -> bool:
        """Whether it failed, and was not stopped by the launcher."""
        return self.returncode != 0 and not self.by_launcher

    @property
    def exit_code(self) -> int:
        """The exit code as a shell reports it."""
        return exit_code_of(self.returncode)

    def describe(self) -> str:
        """Returns a short description."""
        if self.by_launcher:
            return f"{self.task} was stopped by the launcher"
        if self.returncode < 0:
            return f"{self.task} was killed by {_signal_name(-self.returncode)}"
        if self.returncode:
            return f"{self.task} failed with exit code {self.returncode}"
        return f"{self.task} finished"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
