"""``JaxClusterResolver``: processes with the ``JAX_*`` variables of ``jax.distributed``."""

from __future__ import annotations

import os

from stratagem._src.cluster.environment_variables import is_set, read_address, read_integer
from stratagem._src.cluster.errors import EnvironmentVariableError
from stratagem._src.cluster.resolvers.coordinator_only_resolver import CoordinatorOnlyResolver

__all__ = ["JaxClusterResolver"]

_FIX = "Set JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID in every process."


class JaxClusterResolver(CoordinatorOnlyResolver):
    """A resolver that reads the ``JAX_*`` variables of multi-process JAX programs.

    They are ``JAX_COORDINATOR_ADDRESS``, ``JAX_NUM_PROCESSES``, ``JAX_PROCESS_ID`` and, if several
    processes share a machine's accelerators, ``JAX_LOCAL_DEVICE_IDS``.

    >>> import os
    >>> from unittest import mock
    >>> from stratagem.distribute.cluster_resolver import JaxClusterResolver
    >>> variables = dict(
    ...     JAX_COORDINATOR_ADDRESS="node0:8476", JAX_NUM_PROCESSES="4", JAX_PROCESS_ID="1"
    ... )
    >>> with mock.patch.dict(os.environ, variables):
    ...     resolver = JaxClusterResolver()
    ...     resolver.process_id, resolver.num_processes, resolver.coordinator_address
    (1, 4, 'node0:8476')
    """

    @property
    def coordinator_address(self) -> str:
        """The value of ``JAX_COORDINATOR_ADDRESS``."""
        return read_address("JAX_COORDINATOR_ADDRESS", "the host:port of process 0", _FIX)

    @property
    def num_processes(self) -> int:
        """The value of ``JAX_NUM_PROCESSES``."""
        return read_integer("JAX_NUM_PROCESSES", "the number of processes", _FIX, minimum=1)

    @property
    def local_device_ids(self) -> tuple[int, ...] | None:
        """The value of ``JAX_LOCAL_DEVICE_IDS``, such as ``0,1``; ``None`` if it is not set."""
        if not is_set("JAX_LOCAL_DEVICE_IDS"):
            return None
        text = os.environ["JAX_LOCAL_DEVICE_IDS"]
        ids = [part.strip() for part in text.split(",")]
        if not all(part.isascii() and part.isdigit() and len(part) <= 9 for part in ids):
            raise EnvironmentVariableError(
                "JAX_LOCAL_DEVICE_IDS", text, "device numbers separated by commas, as in 0,1"
            )
        return tuple(int(part) for part in ids)

    def _find_task_id(self) -> int:
        return read_integer(
            "JAX_PROCESS_ID", "this process's number", _FIX, below=self.num_processes
        )
