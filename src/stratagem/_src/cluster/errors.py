"""Every exception of the cluster room.

::

    StratagemError
    ├── ClusterSpecError (ValueError)                 a malformed job, task index or address
    ├── TaskError (ValueError)                        a job or task that is not in the cluster
    ├── EnvironmentVariableError (ValueError)         a variable that holds the wrong thing
    │   └── MissingVariableError (RuntimeError)       a variable that is needed and not set
    ├── UnknownAddressesError (RuntimeError)          a launcher that names only the coordinator
    ├── SlurmAllocationError (RuntimeError)           jobs or GPUs that do not fit the Slurm step
    ├── LaunchError (RuntimeError)                    processes that cannot be started as asked
    │   └── RendezvousError                           nodes that cannot meet
    ├── UnsupportedTPUFeatureError (NotImplementedError)
    └── CloudError (RuntimeError)                     a cloud service failed or is not ready
        └── CloudResourceNotFoundError (ValueError)   what was asked for does not exist
"""

from __future__ import annotations

from stratagem._src.core.errors import StratagemError

_SHOWN_CHARACTERS = 200


def shortened(text: str) -> str:
    """Returns as much of a text as a message shows."""
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


class ClusterSpecError(StratagemError, ValueError):
    """A cluster description with a malformed job, task index or address."""


class TaskError(StratagemError, ValueError):
    """A job or task that is not in the cluster, or cannot do what was asked."""


class EnvironmentVariableError(StratagemError, ValueError):
    """An environment variable that does not hold what it should."""

    def __init__(self, variable: str, holds: str, should_hold: str) -> None:
        super().__init__(f"{variable} must hold {should_hold}, but it holds {shortened(holds)!r}.")
        self._arguments = (variable, holds, should_hold)

    def __reduce__(self) -> tuple[type[EnvironmentVariableError], tuple[str, str, str]]:
        return type(self), self._arguments


class MissingVariableError(EnvironmentVariableError, RuntimeError):
    """An environment variable that is needed and not set."""

    def __init__(self, variable: str, should_hold: str, fix: str) -> None:
        Exception.__init__(self, f"{variable} must hold {should_hold}, but it is not set. {fix}")
        self._arguments = (variable, should_hold, fix)


class UnknownAddressesError(StratagemError, RuntimeError):
    """The launcher tells only the coordinator's address, and every task's was asked for."""


class SlurmAllocationError(StratagemError, RuntimeError):
    """The jobs or GPUs asked for do not fit what Slurm allocated."""


class LaunchError(StratagemError, RuntimeError):
    """Processes that cannot be started as asked."""


class RendezvousError(LaunchError):
    """Nodes of a job that cannot meet: one is missing, unreachable, or not trusted."""


class UnsupportedTPUFeatureError(StratagemError, NotImplementedError):
    """A question about TPUs that has no counterpart on JAX."""


class CloudError(StratagemError, RuntimeError):
    """A cloud service could not be reached, refused, or says that a machine is not ready."""


class CloudResourceNotFoundError(CloudError, ValueError):
    """The cloud service knows no resource of this name."""
