"""Where the tasks of a job find who observes it, as their launcher tells them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from stratagem._src.cluster.environment_variables import read_address, read_text
from stratagem._src.telemetry.monitoring.observed_task import ADDRESS_VARIABLE
from stratagem._src.transport import Credentials, Identity

__all__ = ["COLLECTOR", "CollectorAddress", "collector_variables"]

COLLECTOR = Identity("collector")
SECRET_VARIABLE = "STRATAGEM_COLLECTOR_SECRET"
TASK_VARIABLE = "STRATAGEM_COLLECTOR_TASK"
_FIX = "Let 'stratagem run --events' or '--dashboard' set it, or unset STRATAGEM_COLLECTOR."


class CollectorAddress(NamedTuple):
    """Where the collector listens, what it is shown, and what this task is called there."""

    address: str
    credentials: Credentials
    task: str

    @classmethod
    def from_environment(cls) -> CollectorAddress:
        """Returns what the launcher has told this task.

        Raises:
            EnvironmentVariableError: If that cannot be used.
        """
        return cls(
            read_address(ADDRESS_VARIABLE, "where the job's collector listens", _FIX),
            Credentials(secret=read_text(SECRET_VARIABLE, "what it is shown", _FIX)),
            read_text(TASK_VARIABLE, "what this task is called", _FIX),
        )


def collector_variables(address: str, secret: str, task: str) -> Mapping[str, str]:
    """Returns what a task finds in its environment."""
    return {ADDRESS_VARIABLE: address, SECRET_VARIABLE: secret, TASK_VARIABLE: task}
