"""What strategies of several processes have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from stratagem._src.collectives.nccl_all_reduce import NcclAllReduce
from stratagem._src.collectives.replica_programs import run_on_replicas
from stratagem._src.core.communication_options import (
    CommunicationImplementation,
    CommunicationOptions,
)
from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.reduce_op import ReduceOp
from stratagem._src.core.tracing import is_tracer
from stratagem._src.distributed_input.splitting import WorkerPosition
from stratagem._src.membership.join import joined_cluster
from stratagem._src.mesh.program_queue import process_watch
from stratagem._src.mesh.replica_group import REPLICA_AXIS, ReplicaGroup
from stratagem._src.strategies.base import Strategy
from stratagem._src.strategies.mirrored import MirroredExtended
from stratagem._src.values.per_replica import PerReplica

__all__ = ["MultiWorkerExtended"]


class MultiWorkerExtended(MirroredExtended):
    """Puts a copy of every variable on every replica's device, in all processes.

    Args:
        strategy: The strategy this belongs to.
        group: The replicas' devices.
        options: Of its collectives.
    """

    def __init__(
        self, strategy: Strategy, group: ReplicaGroup, options: CommunicationOptions | None = None
    ) -> None:
        super().__init__(strategy, group, NcclAllReduce())
        self._options = options or CommunicationOptions()
        _check_implementation(self._options.implementation, group.devices[0].platform)

    @property
    def experimental_between_graph(self) -> bool:
        """Whether every worker runs a program of its own: yes."""
        return True

    @property
    def should_checkpoint(self) -> bool:
        """Whether this worker should write checkpoints: the leader."""
        return self.worker_position().index == 0

    @property
    def should_save_summary(self) -> bool:
        """Whether this worker should write summaries: the leader."""
        return self.should_checkpoint

    def worker_position(self) -> WorkerPosition:
        """Returns where this process stands among those that read the same input."""
        joined = joined_cluster()
        if joined is None or not self._group.spans_processes:
            return WorkerPosition(num_replicas=self._group.size)
        return WorkerPosition(len(joined.workers), joined.process_id, self._group.local_size)

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
        _check_same_variable(every)
        leads = self.worker_position().index == 0
        words = _to_words(host if leads else np.zeros_like(host))
        nothing = [np.zeros_like(words)] * (self._group.local_size - 1)
        [summed] = run_on_replicas(
            "broadcast of the leader's value",
            (),
            lambda: lambda part: [jax.lax.psum(part, REPLICA_AXIS)],
            [PerReplica([words, *nothing], self._group)],
            self._group,
        )
        return _from_words(np.asarray(self._group.local_view(summed)), host)


def _check_implementation(implementation: CommunicationImplementation, platform: str) -> None:
    offered = {"cpu": CommunicationImplementation.RING, "tpu": None}
    own = offered.get(platform, CommunicationImplementation.NCCL)
    if implementation not in (CommunicationImplementation.AUTO, own):
        also = "" if own is None else f" or {own.name}"
        raise InvalidArgumentError(
            f"On {platform.upper()} the communication implementation must be AUTO{also}, got "
            f"{implementation.name}."
        )


def _check_same_variable(every: list[Any]) -> None:
    joined = joined_cluster()
    assert joined is not None
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
