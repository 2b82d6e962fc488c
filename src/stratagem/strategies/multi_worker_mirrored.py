"""``MultiWorkerMirroredStrategy``: synchronous training on the devices of many machines."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from stratagem.cluster.meeting.join import JoinedCluster, join_cluster
from stratagem.cluster.resolve import resolve_cluster
from stratagem.cluster.resolvers.cluster_resolver import ClusterResolver
from stratagem.collectives.cross_device_ops import CrossDeviceOps, run_on_replicas
from stratagem.collectives.nccl_all_reduce import NcclAllReduce
from stratagem.collectives.options import CommunicationImplementation, CommunicationOptions
from stratagem.core.devices import name_processes, resolve_devices
from stratagem.core.errors import DeviceError, InvalidArgumentError
from stratagem.core.launch import process_watch, watch_processes
from stratagem.core.reduce_op import ReduceOp
from stratagem.core.replica_group import REPLICA_AXIS, ReplicaGroup
from stratagem.core.tracing import is_tracer
from stratagem.input.splitting import WorkerPosition
from stratagem.strategies.base import Strategy
from stratagem.strategies.mirrored import MirroredExtended
from stratagem.values.per_replica import PerReplica

__all__ = ["ExperimentalMultiWorkerMirroredStrategy", "MultiWorkerMirroredStrategy"]

_logger = logging.getLogger("stratagem")

DEFAULT_TIMEOUT_SECONDS = 300.0


class MultiWorkerMirroredStrategy(Strategy):
    """Runs one replica on each device of each worker, in step, with variables mirrored on all.

    Every worker runs the same program. Make the strategy at its start, before anything computes: it
    joins the other workers, and waits until all are there. The chief, or else worker 0, leads: its
    initial values are everybody's. An evaluator, or a process without a cluster, works alone with its
    own devices.

    A worker that is gone, stopped, or stuck ends the calls of all others with ``UnavailableError``,
    which names it; variables keep the values from before the call.

    Args:
        cluster_resolver: Says who the workers are. Default: what the environment tells, ``TF_CONFIG``
            first.
        communication_options: Packing, the implementation, and how many seconds a step may wait for
            other workers (``timeout_seconds``; default 300).

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
    ) -> None:
        options = communication_options or CommunicationOptions()
        resolver = cluster_resolver or resolve_cluster().resolver
        self._cluster_resolver = resolver
        self._joined = _join(resolver, options)
        devices = _devices(self._joined)
        group = ReplicaGroup.of(devices)
        _check_implementation(options.implementation, devices[0].platform)
        self._is_leader = self._joined is None or self._joined.process_id == 0
        super().__init__(MultiWorkerMirroredExtended(self, group, options))
        workers = 1 if self._joined is None else len(self._joined.workers)
        if self._is_leader:
            _logger.info(
                "Using %s with %d workers and %d replicas.",
                type(self).__name__,
                workers,
                group.size,
            )

    @property
    def cluster_resolver(self) -> ClusterResolver | None:
        """What says which machines take part."""
        return self._cluster_resolver

    def _worker_position(self) -> WorkerPosition:
        group = self.replica_group
        if self._joined is None:
            return WorkerPosition(num_replicas=group.size)
        count, index = len(self._joined.workers), self._joined.process_id
        return WorkerPosition(count, index, group.local_size)

    def __repr__(self) -> str:
        workers = 1 if self._joined is None else len(self._joined.workers)
        return (
            f"<{type(self).__name__} of {workers} workers, here on "
            f"{', '.join(self._extended.worker_devices)}>"
        )


class ExperimentalMultiWorkerMirroredStrategy(MultiWorkerMirroredStrategy):
    """``MultiWorkerMirroredStrategy`` with the arguments of older code.

    Args:
        communication: Which library moves the data.
        cluster_resolver: Says who the workers are.
    """

    def __init__(
        self,
        communication: CommunicationImplementation = CommunicationImplementation.AUTO,
        cluster_resolver: ClusterResolver | None = None,
    ) -> None:
        options = CommunicationOptions(implementation=communication)
        super().__init__(cluster_resolver, options)


class MultiWorkerMirroredExtended(MirroredExtended):
    """Puts a copy of every variable on every replica's device, on all workers."""

    def __init__(
        self,
        strategy: MultiWorkerMirroredStrategy,
        group: ReplicaGroup,
        options: CommunicationOptions,
    ) -> None:
        ops: CrossDeviceOps = NcclAllReduce()
        super().__init__(strategy, group, ops)
        self._options = options

    @property
    def experimental_between_graph(self) -> bool:
        """Whether every worker runs a program of its own: yes."""
        return True

    @property
    def should_checkpoint(self) -> bool:
        """Whether this worker should write checkpoints: the leader."""
        leads: bool = self._strategy._is_leader
        return leads

    @property
    def should_save_summary(self) -> bool:
        """Whether this worker should write summaries: the leader."""
        return self.should_checkpoint

    def reduce_values(
        self, op: ReduceOp, values: Sequence[Any], options: CommunicationOptions | None = None
    ) -> list[Any]:
        """Returns each per-replica value combined over the replicas of all workers."""
        options = options or self._options
        if options.timeout_seconds not in (None, self._options.timeout_seconds):
            raise InvalidArgumentError(
                "The deadline of collectives belongs to the whole strategy, got timeout_seconds="
                f"{options.timeout_seconds} for one. Give it to "
                "MultiWorkerMirroredStrategy(communication_options=...)."
            )
        _check_implementation(options.implementation, self._group.devices[0].platform)
        return super().reduce_values(op, values, options)

    def leader_value(self, value: Any, name: str) -> Any:
        """Returns the first value of a variable as the leader has it."""
        if not self._group.spans_processes or is_tracer(value):
            return value
        host = np.asarray(value)
        described = [name, list(host.shape), host.dtype.name]
        every = process_watch().exchange("variables", described, f"creation of variable {name!r}")
        _check_same_variable(every, self._strategy._joined)
        words = _to_words(host) if self._strategy._is_leader else _to_words(np.zeros_like(host))
        nothing = [np.zeros_like(words)] * (self._group.local_size - 1)
        [summed] = run_on_replicas(
            "broadcast of the leader's value",
            (),
            lambda: lambda part: [jax.lax.psum(part, REPLICA_AXIS)],
            [PerReplica([words, *nothing], self._group)],
            self._group,
        )
        return _from_words(np.asarray(self._group.local_view(summed)), host)


def _join(resolver: ClusterResolver | None, options: CommunicationOptions) -> JoinedCluster | None:
    """Joins the other workers; ``None`` if there are none."""
    if resolver is None or resolver.num_processes <= 1:
        if resolver is not None:
            _check_task(resolver)
        return None
    _check_task(resolver)
    joined = join_cluster(resolver, options.timeout_seconds or DEFAULT_TIMEOUT_SECONDS)
    watch_processes(joined.watch)
    name_processes([(worker.job, worker.index) for worker in joined.workers])
    return joined


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


def _check_implementation(implementation: CommunicationImplementation, platform: str) -> None:
    offered = {"cpu": CommunicationImplementation.RING, "tpu": None}
    own = offered.get(platform, CommunicationImplementation.NCCL)
    if implementation not in (CommunicationImplementation.AUTO, own):
        also = "" if own is None else f" or {own.name}"
        raise InvalidArgumentError(
            f"On {platform.upper()} the communication implementation must be AUTO{also}, got "
            f"{implementation.name}."
        )


def _check_same_variable(every: list[Any], joined: JoinedCluster) -> None:
    if any(described != every[0] for described in every):
        raise InvalidArgumentError(
            "Every worker must create the same variables in the same order, got "
            + "; ".join(
                f"{name!r} of shape {tuple(shape)} and dtype {dtype} on {worker}"
                for worker, (name, shape, dtype) in zip(joined.workers, every, strict=True)
            )
            + "."
        )


def _to_words(host: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns the bytes of an array as numbers, of which a power of two needs few programs."""
    raw = np.frombuffer(host.tobytes(), np.uint8)
    length = 1 << max(0, (raw.size - 1).bit_length() - 2)
    words = np.zeros(length, np.uint32)
    words.view(np.uint8)[: raw.size] = raw
    return words


def _from_words(words: np.ndarray[Any, Any], like: np.ndarray[Any, Any]) -> Any:
    raw = words.view(np.uint8)[: like.nbytes]
    return jax.numpy.asarray(np.frombuffer(raw.tobytes(), like.dtype).reshape(like.shape))
