"""``TaskProgram``: the command of a node's tasks, and how to show its output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stratagem._src.cluster.errors import LaunchError

__all__ = ["TaskProgram", "check_num_devices"]


@dataclass(frozen=True)
class TaskProgram:
    """What every task of a node runs.

    Attributes:
        command: The program and its arguments.
        environment: The environment variables that it inherits.
        num_devices: The number of virtual CPU devices of each task; ``None`` leaves it to JAX.
        quiet: Whether only the leader's output is shown.
        log_dir: The directory for log files with every task's output, if any.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False)  # there may be secrets in it
    num_devices: int | None = None
    quiet: bool = False
    log_dir: Path | None = None

    def __post_init__(self) -> None:
        check_num_devices(self.num_devices)


def check_num_devices(number: int | None) -> None:
    """Raises ``LaunchError`` if the number of virtual CPU devices is not positive."""
    if number is not None and number < 1:
        raise LaunchError(f"The number of devices per worker must be at least 1, got {number}.")
