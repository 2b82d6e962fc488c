"""The address and credentials of a job's collector, as the launcher passes them to tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from stratagem._src.cluster.environment_variables import read_address, read_text
from stratagem._src.telemetry.monitoring.monitored_task import ADDRESS_VARIABLE
from stratagem._src.transport import Credentials, Identity

__all__ = ["COLLECTOR", "CollectorAddress", "collector_variables"]

COLLECTOR = Identity("collector")
SECRET_VARIABLE = "STRATAGEM_COLLECTOR_SECRET"
TASK_VARIABLE = "STRATAGEM_COLLECTOR_TASK"
_FIX = "Let 'stratagem run --events' or '--dashboard' set it, or unset STRATAGEM_COLLECTOR."


class CollectorAddress(NamedTuple):
    """The address of the collector, the credentials for it, and the name of this task."""

    address: str
    credentials: Credentials
    task: str

    @classmethod
    def from_environment(cls) -> CollectorAddress:
        """Returns the address from the variables that the launcher has set.

        Raises:
            EnvironmentVariableError: If a variable is missing or invalid.
        """
        return cls(
            read_address(ADDRESS_VARIABLE, "the address of the job's collector", _FIX),
            Credentials(secret=read_text(SECRET_VARIABLE, "the collector's secret", _FIX)),
            read_text(TASK_VARIABLE, "the name of this task", _FIX),
        )


def collector_variables(address: str, secret: str, task: str) -> Mapping[str, str]:
    """Returns the environment variables of a task."""
    return {ADDRESS_VARIABLE: address, SECRET_VARIABLE: secret, TASK_VARIABLE: task}
