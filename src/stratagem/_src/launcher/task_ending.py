"""``TaskEnding``: how the process of one task ended."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from stratagem._src.cluster.leadership import Task

__all__ = ["TaskEnding", "exit_code_of"]


def exit_code_of(returncode: int) -> int:
    """Returns the code a shell would give: 128 and the signal where a signal ended the process.

    >>> from stratagem._src.launcher.task_ending import exit_code_of
    >>> exit_code_of(3), exit_code_of(-9)
    (3, 137)
    """
    return returncode if returncode >= 0 else 128 - returncode


@dataclass(frozen=True)
class TaskEnding:
    """How the process of one task ended.

    >>> from stratagem._src.cluster import Task
    >>> from stratagem._src.launcher.task_ending import TaskEnding
    >>> TaskEnding(Task("worker", 1), -9).describe()
    'worker 1 was killed by SIGKILL'

    Attributes:
        task: Which one.
        returncode: Its exit code, or the negative number of the signal that ended it.
        by_launcher: Whether the launcher ended it.
        output: The end of what it printed.
    """

    task: Task
    returncode: int
    by_launcher: bool = False
    output: str = ""

    @property
    def failed(self) -> bool:
        """Whether it ended badly of its own."""
        return self.returncode != 0 and not self.by_launcher

    @property
    def exit_code(self) -> int:
        """The code a shell would give."""
        return exit_code_of(self.returncode)

    def describe(self) -> str:
        """Returns the ending in a few words."""
        if self.by_launcher:
            return f"{self.task} was ended by the launcher"
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
