"""What strategies of several processes have in common."""

from __future__ import annotations

import collections
import dataclasses
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np

from stratagem._src.collectives.nccl_all_reduce import NcclAllReduce
from stratagem._src.collectives.replica_programs import run_on_replicas
from stratagem._src.control_plane.join import joined_cluster
from stratagem._src.core.communication_options import (
    CommunicationImplementation,
    CommunicationOptions,
)
from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.reduce_op import ReduceOp
from stratagem._src.input.splitting import WorkerPosition
from stratagem._src.jax_compat.tracing import is_tracer
from stratagem._src.mesh.dispatch_queue import process_watch
from stratagem._src.mesh.replica_group import REPLICA_AXIS, ReplicaGroup
from stratagem._src.strategies.base import Strategy
from stratagem._src.strategies.mirrored import MirroredExtended
from stratagem._src.values.per_replica import PerReplica
from stratagem._src.variables.distributed_variable import DistributedVariable

__all__ = ["MultiWorkerExtended"]

_BROADCAST_BYTES = 16 << 20


class MultiWorkerExtended(MirroredExtended):
    """Puts a copy of every variable on every replica's device, in all processes.

    Args:
        strategy: The strategy this belongs to.
        group: The replicas' devices.
        options: Of its collectives.
        is_elastic: Whether the workers may form anew.
    """

    def __init__(
        self,
        strategy: Strategy,
        group: ReplicaGroup,
        options: CommunicationOptions | None = None,
        *,
        is_elastic: bool = False,
    ) -> None:
        super().__init__(strategy, group, NcclAllReduce())
        self.is_elastic: bool = is_elastic
        self._options = options or CommunicationOptions()
        self._created: list[weakref.ref[DistributedVariable]] = []
        self._first: list[tuple[weakref.ref[DistributedVariable], Any]] = []
        self._expected: collections.deque[np.ndarray[Any, Any]] = collections.deque()
        _check_implementation(self._options.implementation, group.devices[0].platform)

    @property
    def experimental_between_graph(self) -> bool:
        """Whether every worker runs a program of its own: yes."""
        return True

    @property
    def divides_variables(self) -> bool:
        """Whether variables that are to lie in parts do: also where other workers are yet to come."""
        return self.is_elastic or super().divides_variables

    @property
    def gradient_options(self) -> CommunicationOptions:
        """The options that the strategy was created with."""
        return self._options

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
        if options is None:
            # What is no gradient, a count or a metric, is not rounded.
            options = dataclasses.replace(self._options, dtype=None)
        if options.timeout_seconds not in (None, self._options.timeout_seconds):
            raise InvalidArgumentError(
                "The deadline of collectives belongs to the whole strategy, got timeout_seconds="
                f"{options.timeout_seconds} for one. Give it to "
                "MultiWorkerMirroredStrategy(communication_options=...)."
            )
        _check_implementation(options.implementation, self._group.devices[0].platform)
        return super().reduce_values(op, values, options)

    # --- workers that form anew -----------------------------------------------------------------------

    def use_group(self, group: ReplicaGroup) -> None:
        """Has replicas on other devices from now on; those of before are gone."""
        self._group = group

    def created_variables(self) -> list[DistributedVariable]:
        """Returns the variables that were created in the scope and still exist, in that order."""
        alive = [(reference, reference()) for reference in self._created]
        self._created = [reference for reference, variable in alive if variable is not None]
        return sorted(
            (variable for _, variable in alive if variable is not None), key=_creation_number
        )

    def expect(self, values: Iterable[np.ndarray[Any, Any]]) -> None:
        """Gives these values to the next variables that are created here: other workers have them."""
        self._expected = collections.deque(values)

    @property
    def expected(self) -> list[np.ndarray[Any, Any]]:
        """The values that have not been given to a variable yet."""
        return list(self._expected)

    @property
    def expects_values(self) -> bool:
        """Whether other workers have the next variable that is created here already."""
        return bool(self._expected)

    def expected_value(self, value: Any, name: str) -> Any | None:
        """Returns what other workers have of a variable that is created here later than there."""
        if not self._expected:
            return None
        return _check_expected(self._expected.popleft(), value, name)

    def note_created(self, variable: DistributedVariable, first: Any) -> None:
        """Notes that a variable has its first value, if the workers may form anew."""
        if self.is_elastic:
            self._created.append(weakref.ref(variable))
            self._first.append((self._created[-1], first))

    def first_values(self) -> list[tuple[DistributedVariable, Any]]:
        """Returns the variables that were created since ``forget_first_values``, with what they had."""
        alive = [(reference(), first) for reference, first in self._first]
        return sorted(
            ((variable, first) for variable, first in alive if variable is not None),
            key=lambda pair: _creation_number(pair[0]),
        )

    def forget_first_values(self) -> None:
        """Forgets what new variables had at first."""
        self._first.clear()

    def leader_value(self, value: Any, name: str) -> Any:
        """Returns a value as the leader has it."""
        if not self._group.spans_processes or is_tracer(value):
            return value
        host = np.asarray(value)
        described = [name, list(host.shape), host.dtype.name]
        every = process_watch().exchange("variables", described, f"creation of variable {name!r}")
        _check_same_variable(every)
        raw = self.broadcast(host.tobytes(), host.nbytes, from_worker=0)
        return jax.numpy.asarray(np.frombuffer(raw, host.dtype).reshape(host.shape))

    def broadcast(self, raw: bytes, num_bytes: int, *, from_worker: int) -> bytes:
        """Returns what one worker gives, in all.

        Args:
            raw: What this worker gives, if it is the one.
            num_bytes: How much that is, in all workers.
            from_worker: Which worker.
        """
        if not self._group.spans_processes:
            return raw
        gives = self.worker_position().index == from_worker
        received = bytearray()
        for start in range(0, num_bytes, _BROADCAST_BYTES):
            size = min(_BROADCAST_BYTES, num_bytes - start)
            words = _words(size)
            if gives:
                words.view(np.uint8)[:size] = np.frombuffer(raw, np.uint8, size, start)
            nothing = [np.zeros_like(words)] * (self._group.local_size - 1)
            [summed] = run_on_replicas(
                f"broadcast of worker {from_worker}'s values",
                (),
                lambda: lambda part: [jax.lax.psum(part, REPLICA_AXIS)],
                [PerReplica([words, *nothing], self._group)],
                self._group,
            )
            received += np.asarray(self._group.local_view(summed)).view(np.uint8)[:size].tobytes()
        return bytes(received)


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


def _creation_number(variable: DistributedVariable) -> int:
    # A traced function gives variables their first values in another order than an eager one.
    return variable.creation_number


def _check_expected(expected: np.ndarray[Any, Any], value: Any, name: str) -> Any:
    if (expected.shape, expected.dtype) != (tuple(value.shape), value.dtype):
        raise InvalidArgumentError(
            "Every worker must create the same variables in the same order, but a worker that came later "
            f"created {name!r} of shape {value.shape} and dtype {value.dtype.name} where the others have "
            f"one of shape {expected.shape} and dtype {expected.dtype.name}."
        )
    return expected


def _words(num_bytes: int) -> np.ndarray[Any, Any]:
    """Returns room for bytes as numbers, of which a power of two needs few programs."""
    return np.zeros(1 << max(0, (num_bytes - 1).bit_length() - 2), np.uint32)
