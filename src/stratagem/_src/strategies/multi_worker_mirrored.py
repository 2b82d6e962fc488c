"""``MultiWorkerMirroredStrategy``: synchronous data parallelism on the devices of many machines."""

from __future__ import annotations

import logging

import jax

from stratagem._src.cluster.elastic_environment import elastic_min_workers
from stratagem._src.cluster.resolve import resolve_cluster
from stratagem._src.cluster.resolvers.cluster_resolver import ClusterResolver, check_task_of
from stratagem._src.cluster.resolvers.tf_config_cluster_resolver import TFConfigClusterResolver
from stratagem._src.control_plane.elastic_job import ElasticJob
from stratagem._src.control_plane.join import JoinedCluster, join_cluster, joined_cluster
from stratagem._src.core.communication_options import (
    CommunicationImplementation,
    CommunicationOptions,
)
from stratagem._src.core.errors import DeviceError, InvalidArgumentError
from stratagem._src.mesh.devices import resolve_devices
from stratagem._src.mesh.logical_devices import group_with_rules
from stratagem._src.mesh.replica_group import ReplicaGroup
from stratagem._src.mesh.sharding_rules import LayoutMap, ShardingRules
from stratagem._src.strategies.logical_device_layouts import LogicalDeviceLayouts
from stratagem._src.strategies.mirrored import checked_rules
from stratagem._src.strategies.multi_worker_extended import MultiWorkerExtended

__all__ = ["ExperimentalMultiWorkerMirroredStrategy", "MultiWorkerMirroredStrategy"]

_logger = logging.getLogger("stratagem")


class MultiWorkerMirroredStrategy(LogicalDeviceLayouts):
    """Synchronous data parallelism on many machines: one replica per device, with mirrored variables.

    Every worker runs the same program. Create the strategy at the start of the program, before the JAX
    backend is initialized: it joins the other workers and waits for all of them. The chief, or else worker
    0, is the leader: all workers use its initial values. An evaluator, or a process without a cluster, uses
    only its own devices.

    If a worker is lost, stopped or stuck, the calls of all others raise ``UnavailableError``, which names
    it. On CPU, variables keep the values from before the call; on other platforms their buffers may have
    been donated to the failed program.

    Args:
        cluster_resolver: Describes the workers. Default: from the environment, ``TF_CONFIG`` first.
        communication_options: Packing, the implementation, and the number of seconds that a step may wait
            for other workers (``timeout_seconds``; default 300).
        devices_per_replica: Number of a worker's devices of each replica, as in ``MirroredStrategy``.
        sharding_rules: How variables are sharded over the devices of a replica, as in ``MirroredStrategy``.
            All devices of a replica belong to one worker.

    Raises:
        UnavailableError: If a worker does not join in time.
        BackendStartedError: If the JAX backend is already initialized.

    JAX equivalent: ``jax.distributed.initialize`` and ``jax.shard_map`` over all processes' devices.

    >>> import stratagem as sg
    >>> strategy = sg.distribute.MultiWorkerMirroredStrategy()  # no cluster: one worker
    >>> strategy.extended.should_checkpoint
    True
    """

    def __init__(
        self,
        cluster_resolver: ClusterResolver | None = None,
        communication_options: CommunicationOptions | None = None,
        devices_per_replica: int = 1,
        sharding_rules: ShardingRules | LayoutMap | None = None,
    ) -> None:
        if isinstance(cluster_resolver, str):
            raise InvalidArgumentError(
                "MultiWorkerMirroredStrategy takes a cluster resolver, or nothing to find the workers in "
                f"the environment, got {cluster_resolver!r}. The communication backend follows from the "
                "devices: leave it out."
            )
        self._rules = checked_rules(sharding_rules)
        options = communication_options or CommunicationOptions()
        resolver = cluster_resolver or resolve_cluster().resolver
        self._cluster_resolver = resolver or TFConfigClusterResolver()
        self.elastic_job: ElasticJob | None = _join(resolver, options)
        self._devices_per_replica = devices_per_replica
        group = self._group_of_devices()
        is_elastic = self.elastic_job is not None
        extended = MultiWorkerExtended(self, group, options, is_elastic=is_elastic)
        super().__init__(extended)
        workers = extended.worker_position().num_workers
        if extended.should_checkpoint:
            _logger.info(
                "Using %s with %d workers and %d replicas.",
                type(self).__name__,
                workers,
                group.size,
            )

    @property
    def num_replicas_in_sync(self) -> int:
        """Number of replicas over which gradients are combined.

        In a replacement worker that is not admitted yet, it is the number of replicas with all planned
        workers.
        """
        job = self.elastic_job
        if job is not None and job.is_waiting:
            return self.replica_group.size * len(job.planned)
        return super().num_replicas_in_sync

    def rerendezvous(self) -> None:
        """Re-forms the cluster of an elastic job with the remaining and the joining workers.

        It replaces the JAX backend: when it returns, the old devices and the values of all variables are
        gone.
        """
        assert self.elastic_job is not None
        self.elastic_job.next_generation()
        assert isinstance(self._extended, MultiWorkerExtended)
        self._extended.use_group(self._group_of_devices())

    def _group_of_devices(self) -> ReplicaGroup:
        return group_with_rules(_devices(joined_cluster()), self._devices_per_replica, self._rules)

    @property
    def cluster_resolver(self) -> ClusterResolver:
        """The cluster resolver; without a cluster, one whose ``task_type`` is ``None``."""
        return self._cluster_resolver

    def __repr__(self) -> str:
        workers = self._extended.worker_position().num_workers
        return (
            f"<{type(self).__name__} {self._label} of {workers} workers, here on "
            f"{', '.join(self._extended.worker_devices)}>"
        )


class ExperimentalMultiWorkerMirroredStrategy(MultiWorkerMirroredStrategy):
    """``MultiWorkerMirroredStrategy`` with the deprecated constructor arguments.

    Args:
        communication: The communication library.
        cluster_resolver: Describes the workers.

    >>> import stratagem as sg
    >>> experimental = sg.distribute.experimental
    >>> strategy = experimental.MultiWorkerMirroredStrategy(experimental.CollectiveCommunication.RING)
    """

    def __init__(
        self,
        communication: CommunicationImplementation = CommunicationImplementation.AUTO,
        cluster_resolver: ClusterResolver | None = None,
    ) -> None:
        options = CommunicationOptions(implementation=communication)
        super().__init__(cluster_resolver, options)


def _join(resolver: ClusterResolver | None, options: CommunicationOptions) -> ElasticJob | None:
    """Joins the other workers, if there are any; returns the job if it is elastic."""
    if resolver is None:
        return None
    _check_task(resolver)
    check_task_of(resolver)
    if resolver.num_processes <= 1:
        return None
    min_workers = elastic_min_workers()
    if min_workers is not None:
        return ElasticJob(resolver, options.timeout_seconds, min_workers)
    join_cluster(resolver, options.timeout_seconds)
    return None


def _check_task(resolver: ClusterResolver) -> None:
    if resolver.task_type == "ps":
        raise InvalidArgumentError(
            "MultiWorkerMirroredStrategy has no parameter servers, but this task is "
            f"ps {resolver.task_id}. Use ParameterServerStrategy, or a cluster of workers."
        )


def _devices(joined: JoinedCluster | None) -> tuple[jax.Device, ...]:
    if joined is None:
        return resolve_devices()
    platform = jax.local_devices()[0].platform
    devices = tuple(jax.devices(platform))
    counts = [
        sum(device.process_index == index for device in devices)
        for index in range(len(joined.workers))
    ]
    if len(set(counts)) > 1:
        raise DeviceError(
            "Every worker must have the same number of devices, got "
            + ", ".join(
                f"{count} on {worker}" for worker, count in zip(joined.workers, counts, strict=True)
            )
            + "."
        )
    return devices
