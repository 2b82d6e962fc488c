"""``MultiWorkerMirroredStrategy``: synchronous training on the devices of many machines."""

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
from stratagem._src.mesh.logical_devices import grouped
from stratagem._src.strategies.logical_device_layouts import LogicalDeviceLayouts
from stratagem._src.strategies.multi_worker_extended import MultiWorkerExtended

__all__ = ["ExperimentalMultiWorkerMirroredStrategy", "MultiWorkerMirroredStrategy"]

_logger = logging.getLogger("stratagem")


class MultiWorkerMirroredStrategy(LogicalDeviceLayouts):
    """Runs one replica on each device of each worker, in step, with variables mirrored on all.

    Every worker runs the same program. Make the strategy at its start, before anything computes: it
    joins the other workers, and waits until all are there. The chief, or else worker 0, leads: its
    initial values are everybody's. An evaluator, or a process without a cluster, works alone with its
    own devices.

    A worker that is gone, stopped, or stuck ends the calls of all others with ``UnavailableError``,
    which names it. On CPU variables keep the values from before the call; elsewhere their memory may
    have been given to the program that was lost.

    Args:
        cluster_resolver: Says who the workers are. Default: what the environment tells, ``TF_CONFIG``
            first.
        communication_options: Packing, the implementation, and how many seconds a step may wait for
            other workers (``timeout_seconds``; default 300).
        devices_per_replica: How many of a worker's devices each replica has, as in ``MirroredStrategy``.

    Raises:
        UnavailableError: If some worker does not come in time.
        BackendStartedError: If something was computed before.

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
    ) -> None:
        options = communication_options or CommunicationOptions()
        resolver = cluster_resolver or resolve_cluster().resolver
        self._cluster_resolver = resolver or TFConfigClusterResolver()
        self.elastic_job: ElasticJob | None = _join(resolver, options)
        self._devices_per_replica = devices_per_replica
        group = grouped(_devices(joined_cluster()), devices_per_replica)
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

        In a worker that takes the place of a lost one, and has not been let in yet, it is the number
        that there will be if all planned workers are there.
        """
        job = self.elastic_job
        if job is not None and job.is_waiting:
            return self.replica_group.size * len(job.planned)
        return super().num_replicas_in_sync

    def form_anew(self) -> None:
        """Goes on with the workers that are left of an elastic job, and with those that have come.

        The devices of before are gone when it returns, and with them the values of all variables.
        """
        assert self.elastic_job is not None
        self.elastic_job.next_generation()
        assert isinstance(self._extended, MultiWorkerExtended)
        self._extended.use_group(grouped(_devices(joined_cluster()), self._devices_per_replica))

    @property
    def cluster_resolver(self) -> ClusterResolver:
        """What says which machines take part; without a cluster one whose ``task_type`` is ``None``."""
        return self._cluster_resolver

    def __repr__(self) -> str:
        workers = self._extended.worker_position().num_workers
        return (
            f"<{type(self).__name__} {self._label} of {workers} workers, here on "
            f"{', '.join(self._extended.worker_devices)}>"
        )


class ExperimentalMultiWorkerMirroredStrategy(MultiWorkerMirroredStrategy):
    """``MultiWorkerMirroredStrategy`` with the arguments of older code.

    Args:
        communication: Which library moves the data.
        cluster_resolver: Says who the workers are.

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
