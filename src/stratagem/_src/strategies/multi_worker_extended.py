"""``MultiWorkerExtended``: components of strategies that span several processes."""

from __future__ import annotations

import collections
import dataclasses
import hashlib
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
from stratagem._src.core.errors import InvalidArgumentError, VariableError
from stratagem._src.core.reduce_op import ReduceOp
from stratagem._src.core.types import ArrayLike
from stratagem._src.input.splitting import WorkerPosition
from stratagem._src.jax_compat.tracing import is_tracer
from stratagem._src.mesh.process_monitor import process_monitor
from stratagem._src.mesh.replica_group import REPLICA_AXIS, ReplicaGroup
from stratagem._src.strategies.base import Strategy
from stratagem._src.strategies.mirrored import MirroredExtended
from stratagem._src.values.per_replica import PerReplica
from stratagem._src.variables.distributed_variable import DistributedVariable
from stratagem._src.variables.variable import Variable, is_plain_variable

__all__ = ["MultiWorkerExtended"]

_BROADCAST_CHUNK_BYTES = 16 << 20


class MultiWorkerExtended(MirroredExtended):
    """Puts a copy of every variable on every replica's device, in all processes.

    Args:
        strategy: The strategy that it belongs to.
        group: The replicas' devices.
        options: Options of its collectives.
        is_elastic: Whether the set of workers may change (elastic re-rendezvous).
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
        """Whether every worker runs its own program: yes."""
        return True

    @property
    def shards_variables(self) -> bool:
        """Whether ``FullySharded`` has an effect: even with one replica, if other workers may join."""
        return self.is_elastic or super().shards_variables

    @property
    def gradient_options(self) -> CommunicationOptions:
        """The options that the strategy was created with."""
        return self._options

    def worker_position(self) -> WorkerPosition:
        """Returns this process's position among the workers that read the same input."""
        joined = joined_cluster()
        if joined is None or not self._group.spans_processes:
            return WorkerPosition(num_replicas=self._group.size)
        return WorkerPosition(len(joined.workers), joined.process_id, self._group.local_size)

    def reduce_values(
        self, op: ReduceOp, values: Sequence[Any], options: CommunicationOptions | None = None
    ) -> list[Any]:
        """Returns each per-replica value combined over the replicas of all workers."""
        if options is None:
            # No gradient compression here: counts and metrics must not be rounded.
            options = dataclasses.replace(self._options, dtype=None)
        if options.timeout_seconds not in (None, self._options.timeout_seconds):
            raise InvalidArgumentError(
                "The timeout of collectives is set for the whole strategy, got timeout_seconds="
                f"{options.timeout_seconds} for one collective. Pass it to "
                "MultiWorkerMirroredStrategy(communication_options=...)."
            )
        _check_implementation(options.implementation, self._group.devices[0].platform)
        return super().reduce_values(op, values, options)

    # --- elastic jobs: the set of workers changes -----------------------------------------------------

    def use_group(self, group: ReplicaGroup) -> None:
        """Replaces the replicas' devices; the old ones are gone."""
        self._group = group

    def created_variables(self) -> list[DistributedVariable]:
        """Returns the live variables that were created in the scope, in creation order."""
        alive = [(reference, reference()) for reference in self._created]
        self._created = [reference for reference, variable in alive if variable is not None]
        return sorted(
            (variable for _, variable in alive if variable is not None), key=_creation_number
        )

    def expect(self, values: Iterable[np.ndarray[Any, Any]]) -> None:
        """Sets the values of the next new variables, which other workers already have."""
        self._expected = collections.deque(values)

    @property
    def expected(self) -> list[np.ndarray[Any, Any]]:
        """The expected values that no variable has taken yet."""
        return list(self._expected)

    @property
    def expects_values(self) -> bool:
        """Whether other workers already have the next variable that this worker creates."""
        return bool(self._expected)

    def expected_value(self, value: ArrayLike, name: str) -> Any | None:
        """Returns the other workers' value of a variable that this worker creates after them."""
        if not self._expected:
            return None
        return _check_expected(self._expected.popleft(), value, name)

    def note_created(self, variable: DistributedVariable, first: ArrayLike) -> None:
        """Records a variable and its initial value, if the job is elastic."""
        if self.is_elastic:
            self._created.append(weakref.ref(variable))
            self._first.append((self._created[-1], first))

    def first_values(self) -> list[tuple[DistributedVariable, Any]]:
        """Returns the variables since the last ``forget_first_values``, with their initial values."""
        alive = [(reference(), first) for reference, first in self._first]
        return sorted(
            ((variable, first) for variable, first in alive if variable is not None),
            key=lambda pair: _creation_number(pair[0]),
        )

    def forget_first_values(self) -> None:
        """Forgets the initial values of new variables."""
        self._first.clear()

    def leader_value(self, value: ArrayLike, name: str) -> Any:
        """Returns the leader's value (a broadcast)."""
        if not self._group.spans_processes or is_tracer(value):
            return value
        host = np.asarray(value)
        described = [name, list(host.shape), host.dtype.name]
        every = process_monitor().all_gather_object(
            "variables", described, f"creation of variable {name!r}"
        )
        _check_same_variable(every)
        raw = self.broadcast(host.tobytes(), host.nbytes, from_worker=0)
        return jax.numpy.asarray(np.frombuffer(raw, host.dtype).reshape(host.shape))

    def check_equal_on_workers(self, variables: Sequence[Variable], what: str) -> None:
        """Checks that all workers have the same values of variables created outside of the scope."""
        plain = [v for v in variables if is_plain_variable(v) and v.initialized]
        if not plain or not (self._group.spans_processes or self.is_elastic):
            return
        if self.is_elastic:  # a worker that joins gets the values of variables of the scope only
            raise VariableError(_plain_variable_text(what, plain[0], "in an elastic job"))
        digests = [hashlib.sha256(v.value_on_host().tobytes()).hexdigest() for v in plain]
        every = process_monitor().all_gather_object(
            "variables", digests, f"comparison of variables that {what} updates"
        )
        for variable, found in zip(plain, zip(*every, strict=False), strict=False):
            if len(set(found)) > 1:
                text = _plain_variable_text(what, variable, "with other values on other workers")
                raise VariableError(text)

    def broadcast(self, raw: bytes, num_bytes: int, *, from_worker: int) -> bytes:
        """Broadcasts bytes from one worker to all.

        Args:
            raw: The bytes, in the worker that sends them.
            num_bytes: Their number, in all workers.
            from_worker: The worker that sends them.
        """
        if not self._group.spans_processes:
            return raw
        gives = self.worker_position().index == from_worker
        received = bytearray()
        for start in range(0, num_bytes, _BROADCAST_CHUNK_BYTES):
            size = min(_BROADCAST_CHUNK_BYTES, num_bytes - start)
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


def _plain_variable_text(what: str, variable: Variable, found: str) -> str:
    return (
        f"{what} sums the gradients of all workers, so every worker must have the same variables, got "
        f"variable {variable.name!r}, created outside of the strategy's scope, {found}: each worker would "
        "train a model of its own. Create it under `with strategy.scope():`."
    )


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
    # A traced function initializes variables in another order than it creates them.
    return variable.creation_number


def _check_expected(expected: np.ndarray[Any, Any], value: ArrayLike, name: str) -> Any:
    if (expected.shape, expected.dtype) != (tuple(value.shape), value.dtype):
        raise InvalidArgumentError(
            "Every worker must create the same variables in the same order, but a worker that joined later "
            f"created {name!r} of shape {value.shape} and dtype {value.dtype.name} where the others have "
            f"one of shape {expected.shape} and dtype {expected.dtype.name}."
        )
    return expected


def _words(num_bytes: int) -> np.ndarray[Any, Any]:
    """Returns a buffer for bytes as ``uint32`` words.

    Its length is a power of two: broadcasts of many sizes then share few compiled programs.
    """
    return np.zeros(1 << max(0, (num_bytes - 1).bit_length() - 2), np.uint32)
