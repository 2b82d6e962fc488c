"""The exceptions of the cluster package.

::

    StratagemError
    ├── ClusterSpecError (ValueError)                 a malformed job, task index or address
    ├── TaskError (ValueError)                        a job or task that is not in the cluster
    ├── EnvironmentVariableError (ValueError)         a variable that holds the wrong thing
    │   └── MissingVariableError (RuntimeError)       a variable that is needed and not set
    ├── UnknownAddressesError (RuntimeError)          a launcher that gives only the coordinator's address
    ├── SlurmAllocationError (RuntimeError)           jobs or GPUs that do not fit the Slurm step
    ├── LaunchError (RuntimeError)                    processes that cannot be started as requested
    │   └── RendezvousError                           nodes that cannot join a job
    ├── UnsupportedTPUFeatureError (NotImplementedError)
    └── CloudError (RuntimeError)                     a cloud service failed or is not ready
        └── CloudResourceNotFoundError (ValueError)   a resource that does not exist
"""

from __future__ import annotations

from stratagem._src.core.errors import StratagemError, set_public_module

_SHOWN_CHARACTERS = 200


def shortened(text: str) -> str:
    """Returns a text, truncated for an error message."""
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


class ClusterSpecError(StratagemError, ValueError):
    """A cluster description with a malformed job, task index or address."""


class TaskError(StratagemError, ValueError):
    """A job or task that is not in the cluster, or does not support the request."""


class EnvironmentVariableError(StratagemError, ValueError):
    """An environment variable with an invalid value."""

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
    """The addresses of all tasks were requested, but the launcher provides only the coordinator's."""


class SlurmAllocationError(StratagemError, RuntimeError):
    """The requested jobs or GPUs do not fit the Slurm allocation."""


class LaunchError(StratagemError, RuntimeError):
    """Processes that cannot be started as requested."""


class RendezvousError(LaunchError):
    """Nodes that cannot join a job: one is missing, unreachable, or not trusted."""


class UnsupportedTPUFeatureError(StratagemError, NotImplementedError):
    """A TPU feature without a counterpart in JAX."""


class CloudError(StratagemError, RuntimeError):
    """A cloud service is unreachable, rejects the request, or reports that a machine is not ready."""


class CloudResourceNotFoundError(CloudError, ValueError):
    """The cloud service has no resource of this name."""


set_public_module(globals())
