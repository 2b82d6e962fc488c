"""``OpenMPIClusterResolver``: processes started by Open MPI's ``mpirun``."""

from __future__ import annotations

import os
import re
import zlib

from stratagem._src.cluster.address import Address
from stratagem._src.cluster.environment_variables import first_set, is_set, read_integer, read_text
from stratagem._src.cluster.errors import (
    ClusterSpecError,
    EnvironmentVariableError,
    MissingVariableError,
)
from stratagem._src.cluster.resolvers.coordinator_only_resolver import CoordinatorOnlyResolver

__all__ = ["OpenMPIClusterResolver"]

_FIX = "Start the program with Open MPI's mpirun."
_LAUNCHER_URI = "OMPI_MCA_orte_hnp_uri"
_ASK_FOR_ADDRESS = (
    "Open MPI 5 does not provide it: pass coordinator_address='host:port' with the host of rank 0."
)
# Above Linux's range of ephemeral ports.
_FIRST_PORT = 61440
_NUM_PORTS = 4096


class OpenMPIClusterResolver(CoordinatorOnlyResolver):
    """A resolver that reads the ``OMPI_COMM_WORLD_*`` variables.

    ``mpirun`` does not provide the host of rank 0. If every rank is on one machine, it is this machine;
    otherwise the resolver uses the host of ``mpirun`` itself, which Open MPI up to version 4 provides
    and which runs rank 0 unless the host list says otherwise. In other cases pass
    ``coordinator_address``. The port is derived from the job's name, so that every rank computes the same
    one and two jobs rarely collide.

    >>> import os
    >>> from unittest import mock
    >>> from stratagem.distribute.cluster_resolver import OpenMPIClusterResolver
    >>> variables = dict(OMPI_COMM_WORLD_RANK="1", OMPI_COMM_WORLD_SIZE="4")
    >>> with mock.patch.dict(os.environ, variables):
    ...     resolver = OpenMPIClusterResolver(coordinator_address="node0:2222")
    ...     resolver.process_id, resolver.num_processes, resolver.coordinator_address
    (1, 4, 'node0:2222')

    Args:
        coordinator_address: The ``host:port`` of rank 0, the same in every process.

    Raises:
        ClusterSpecError: If ``coordinator_address`` is malformed.
    """

    def __init__(self, coordinator_address: str | None = None) -> None:
        self._coordinator_address = (
            None if coordinator_address is None else str(Address.parse(coordinator_address))
        )

    @property
    def coordinator_address(self) -> str:
        """The address of rank 0."""
        if self._coordinator_address is not None:
            return self._coordinator_address
        return str(Address(self._coordinator_host(), _port_of_job()))

    @property
    def num_processes(self) -> int:
        """The value of ``OMPI_COMM_WORLD_SIZE``."""
        return read_integer("OMPI_COMM_WORLD_SIZE", "the number of processes", _FIX, minimum=1)

    @property
    def local_device_ids(self) -> tuple[int, ...] | None:
        """The accelerator of the local rank; all if this process is alone on the machine."""
        if self._local_size() in (None, 1):
            return None
        return (
            read_integer(
                "OMPI_COMM_WORLD_LOCAL_RANK",
                "this process's rank on its machine",
                _FIX,
                below=self._local_size(),
            ),
        )

    def _find_task_id(self) -> int:
        return read_integer(
            "OMPI_COMM_WORLD_RANK", "this process's rank", _FIX, below=self.num_processes
        )

    def _local_size(self) -> int | None:
        variable = "OMPI_COMM_WORLD_LOCAL_SIZE"
        if not is_set(variable):
            return None
        return read_integer(variable, "the number of processes on this machine", _FIX, minimum=1)

    def _coordinator_host(self) -> str:
        if self._local_size() == self.num_processes:
            return "127.0.0.1"
        uri = read_text(_LAUNCHER_URI, "the address of mpirun", _ASK_FOR_ADDRESS)
        # As in 1531576320.0;tcp://10.96.0.1,10.148.0.1:34911 or …;tcp6://[fe80::1,2620::2]:43370
        found = re.search(r"tcp6?://\[?([^],\[;]+?)(?:[],]|:\d+(?:;|$))", uri)
        host = found.group(1) if found else ""
        try:
            return Address(host, 0).host
        except ClusterSpecError:
            raise EnvironmentVariableError(
                _LAUNCHER_URI, uri, "the address of mpirun, as in 1531576320.0;tcp://10.0.0.1:34911"
            ) from None


def _port_of_job() -> int:
    variable = first_set("PMIX_NAMESPACE", _LAUNCHER_URI)
    if variable is None:
        raise MissingVariableError("PMIX_NAMESPACE", "the name of the job", _ASK_FOR_ADDRESS)
    return _FIRST_PORT + zlib.crc32(os.fsencode(os.environ[variable])) % _NUM_PORTS
