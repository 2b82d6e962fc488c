"""``CoordinatorOnlyResolver``: for launchers that provide a rank and the address of process 0."""

from __future__ import annotations

import abc

from stratagem._src.cluster.cluster_spec import ClusterSpec
from stratagem._src.cluster.errors import TaskError, UnknownAddressesError
from stratagem._src.cluster.resolvers.cluster_resolver import ClusterResolver, format_master_url

__all__ = ["CoordinatorOnlyResolver"]


class CoordinatorOnlyResolver(ClusterResolver):
    """Base class for launchers that provide a rank, a world size and the address of process 0.

    Every process is a ``worker`` whose ``task_id`` is its rank. That is all a synchronous strategy
    needs. The other workers' addresses are unknown, so with more than one process there is no cluster
    spec: one that lists only worker 0 would look like a cluster with one worker.

    >>> from stratagem._src.cluster import CoordinatorOnlyResolver
    >>> class Fixed(CoordinatorOnlyResolver):
    ...     coordinator_address = "w0:2222"
    ...     num_processes = 1
    ...     def _find_task_id(self):
    ...         return 0
    >>> Fixed().cluster_spec()
    ClusterSpec({'worker': ['w0:2222']})
    """

    @property
    @abc.abstractmethod
    def coordinator_address(self) -> str:
        """The address of process 0."""

    @property
    @abc.abstractmethod
    def num_processes(self) -> int:
        """The number of processes that the launcher started."""

    @property
    def process_id(self) -> int:
        """The rank of this process."""
        task_id = self.task_id
        if task_id is None or not 0 <= task_id < self.num_processes:
            raise TaskError(
                f"task_id must be at least 0 and below num_processes ({self.num_processes}), "
                f"got {task_id}."
            )
        return task_id

    def cluster_spec(self) -> ClusterSpec:
        """Returns the cluster of a single process.

        Raises:
            UnknownAddressesError: If there are more processes, whose addresses are unknown.
        """
        if self.num_processes > 1:
            raise UnknownAddressesError(
                f"cluster_spec needs the address of every task, but the launcher of these "
                f"{self.num_processes} processes provides only the coordinator's "
                f"({self.coordinator_address}). Use coordinator_address, num_processes and "
                "process_id, or set TF_CONFIG with all addresses."
            )
        return ClusterSpec({"worker": [self.coordinator_address]})

    def master(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
    ) -> str:
        """Returns the URL of worker 0, the only task whose address is known; ``""`` for others."""
        task_id = self.task_id if task_id is None else task_id
        if (task_type or self.task_type, task_id) != ("worker", 0):
            return ""
        return format_master_url(self.coordinator_address, rpc_layer or self.rpc_layer)

    def _find_task_type(self) -> str:
        return "worker"
