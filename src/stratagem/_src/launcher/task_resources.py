"""``TaskResources``: the resources that each task requests from a scheduler."""

from __future__ import annotations

import re
from dataclasses import dataclass

from stratagem._src.cluster.errors import LaunchError

__all__ = ["TaskResources", "parse_memory"]

_MEMORY = re.compile(r"(?P<number>\d{1,9})(?P<unit>[KMGT])i?B?", re.ASCII | re.IGNORECASE)
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def parse_memory(text: str) -> int:
    """Returns the number of bytes of a size such as ``4G``; units are powers of 1024.

    >>> from stratagem._src.launcher.task_resources import parse_memory
    >>> parse_memory("512M")
    536870912

    Raises:
        LaunchError: If the text is not a size.
    """
    found = _MEMORY.fullmatch(text.strip())
    if not found or not int(found["number"]):
        raise LaunchError(
            f"--memory must be an integer followed by K, M, G or T, such as 4G, got {text!r}."
        )
    return int(found["number"]) * _UNITS[found["unit"].upper()]


@dataclass(frozen=True)
class TaskResources:
    """The resources that each task requests from a scheduler; ``None`` leaves it to the scheduler.

    Only tasks that compute request GPUs: workers, the evaluator, and a chief that trains because there are
    no parameter servers.

    >>> from stratagem._src.launcher.task_resources import TaskResources
    >>> TaskResources(cpus=2, memory_bytes=2**30).given
    ['--cpus', '--memory']

    Raises:
        LaunchError: If a number is not positive.
    """

    cpus: int | None = None
    memory_bytes: int | None = None
    gpus: int | None = None

    def __post_init__(self) -> None:
        for flag, number in self._flags():
            if number is not None and number < 1:
                raise LaunchError(f"{flag} must be at least 1, got {number}.")

    @property
    def given(self) -> list[str]:
        """The flags that are set."""
        return [flag for flag, number in self._flags() if number is not None]

    def _flags(self) -> list[tuple[str, int | None]]:
        return [("--cpus", self.cpus), ("--memory", self.memory_bytes), ("--gpus", self.gpus)]
