"""``TorchrunClusterResolver``: processes with the variables of torchrun."""

from __future__ import annotations

import os

from stratagem._src.cluster.address import Address
from stratagem._src.cluster.environment_variables import is_set, read_integer, read_text
from stratagem._src.cluster.errors import ClusterSpecError, EnvironmentVariableError
from stratagem._src.cluster.resolvers.coordinator_only_resolver import CoordinatorOnlyResolver

__all__ = ["TorchrunClusterResolver"]

_FIX = "Start the program with torchrun, or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT."


class TorchrunClusterResolver(CoordinatorOnlyResolver):
    """A resolver that reads ``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR`` and ``MASTER_PORT``.

    ``LOCAL_RANK`` selects the accelerator of this process if several share a machine. Process 0 listens
    on ``MASTER_PORT``, or on the next port if torchrun uses ``MASTER_PORT`` for its own store, which
    ``TORCHELASTIC_USE_AGENT_STORE`` indicates.

    >>> import os
    >>> from unittest import mock
    >>> from stratagem.distribute.cluster_resolver import TorchrunClusterResolver
    >>> variables = dict(RANK="3", WORLD_SIZE="8", MASTER_ADDR="node0", MASTER_PORT="29500")
    >>> with mock.patch.dict(os.environ, variables):
    ...     resolver = TorchrunClusterResolver()
    ...     resolver.process_id, resolver.num_processes, resolver.coordinator_address
    (3, 8, 'node0:29500')

    Args:
        coordinator_port: The port of process 0, the same in every process.
    """

    def __init__(self, coordinator_port: int | None = None) -> None:
        self._coordinator_port = coordinator_port

    @property
    def coordinator_address(self) -> str:
        """The address of process 0."""
        host = read_text("MASTER_ADDR", "the host of process 0", _FIX)
        try:
            return str(Address(host, self._port()))
        except ClusterSpecError as error:
            raise EnvironmentVariableError(
                "MASTER_ADDR", host, f"the host of process 0 ({error})"
            ) from None

    @property
    def num_processes(self) -> int:
        """The value of ``WORLD_SIZE``."""
        return read_integer("WORLD_SIZE", "the number of processes", _FIX, minimum=1)

    @property
    def local_device_ids(self) -> tuple[int, ...] | None:
        """The accelerator ``LOCAL_RANK``; all if this process is alone on the machine."""
        if not is_set("LOCAL_RANK"):
            return None
        size = None
        if is_set("LOCAL_WORLD_SIZE"):
            size = read_integer(
                "LOCAL_WORLD_SIZE", "the number of processes on this machine", _FIX, minimum=1
            )
        rank = read_integer("LOCAL_RANK", "this process's rank on its machine", _FIX, below=size)
        return None if size == 1 else (rank,)

    def _find_task_id(self) -> int:
        return read_integer("RANK", "this process's rank", _FIX, below=self.num_processes)

    def _port(self) -> int:
        if self._coordinator_port is not None:
            return self._coordinator_port
        # At most one below the last port, because the next port may be used.
        port = read_integer("MASTER_PORT", "a port", _FIX, minimum=1, below=65535)
        return port + (os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True")
