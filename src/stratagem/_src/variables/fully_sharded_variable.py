"""``FullyShardedVariable``: each replica holds a part, and sees the whole when it reads it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.core.reduce_op import ReduceOp
from stratagem._src.jax_compat.compile_time_eval import evaluate_now
from stratagem._src.mesh.addressable_shards import addressable_shards
from stratagem._src.mesh.backend_lifetime import when_backend_ends
from stratagem._src.mesh.dispatch_queue import LAUNCH_LOCK, launch
from stratagem._src.mesh.replica_group import ReplicaGroup
from stratagem._src.values.per_replica import SpmdPerReplica
from stratagem._src.variables import access as state
from stratagem._src.variables import updates
from stratagem._src.variables.atomicity import STORAGE_LOCK, admitted, change
from stratagem._src.variables.distributed_variable import AggregatingVariable
from stratagem._src.variables.shard_layout import Parts
from stratagem._src.variables.updates import Update
from stratagem._src.variables.variable import _register

__all__ = ["FullyShardedVariable", "InParts"]


@dataclass(frozen=True, slots=True)
class InParts:
    """An operand in the form that programs have the value: a replica's part, or all parts together."""

    array: Any


class FullyShardedVariable(AggregatingVariable):
    """A variable of which each replica holds a part; reading it gathers the whole.

    Made by ``Variable(...)`` in a ``FullySharded`` block. To the code that uses it, it is a mirrored
    variable: the same value everywhere, the same updates. In a compiled step the whole is there from
    where it is read to where it is used last, gradients are scattered as they are summed, and updates
    touch the parts only.

    ``variable[i]``, with one whole number, gathers row ``i`` alone where rows are divided, as those of an
    array with three dims or more usually are: so a ``lax.scan`` over a stack of layers has one of them at
    a time.

    JAX equivalent: an array with a ``NamedSharding`` over the axis of the replicas.

    >>> import stratagem as sg
    >>> strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> with strategy.scope(), sg.distribute.experimental.FullySharded(min_size=2):
    ...     x = sg.Variable([1.0, 2.0])
    >>> x
    <sg.Variable 'Variable:0' shape=(2,) dtype=float32, numpy=array([1., 2.], dtype=float32)>
    """

    __slots__ = ()

    made_of_array = None

    @property
    def parts(self) -> Parts:
        """How the value is divided."""
        return Parts.of(tuple(dim or 0 for dim in self._shape), self.group.size)

    # --- storage ----------------------------------------------------------------------------------

    def initialize(self, value: Any) -> None:
        """Stores the first value: the leader's, where there are several processes."""
        runtime = self._strategy.extended
        expected = runtime.expected_value(value, self._name)
        first = runtime.leader_value(value, self._name) if expected is None else expected
        super().initialize(first)
        runtime.note_created(self, self.group.local_view(first))

    def place(self, value: Any) -> Any:
        """Returns a whole value as its parts, each on its replica's device."""
        parts = self.parts
        return self.group.divide_along(parts.padded(self.group.local_view(value)), parts.dim)

    @property
    def split_in_program(self) -> int | None:
        """Along which dim of the array in a program each replica has a block."""
        return self.parts.dim

    @property
    def program_shape(self) -> tuple[int, ...]:
        """Shape of all parts together."""
        return self.parts.stored_shape

    @property
    def replica_shape(self) -> tuple[int, ...]:
        """Shape of one part."""
        return self.parts.part_shape

    def program_value(self, value: Any) -> Any:
        """Returns a whole value as all parts together."""
        return self.parts.padded(value)

    def replica_value(self, value: Any) -> Any:
        """Returns a whole value as a replica's part."""
        return self.parts.own(value)

    def stores_program_results(self, group: ReplicaGroup | None) -> bool:
        """Returns whether the stored array is the whole value: no."""
        return False

    def passes_as_stored(self, group: ReplicaGroup | None) -> bool:
        """Returns whether the stored array goes in and out of a program as it is: yes."""
        return True

    def take_for_program(self, group: ReplicaGroup | None, donate: bool) -> Any:
        """Returns all parts together."""
        array = self._stored()
        return jnp.copy(array) if donate and self._shared else array

    # --- reading ----------------------------------------------------------------------------------

    @property
    def values(self) -> tuple[Any, ...]:
        """The whole value, once on each replica's device."""
        frame = state.current_frame()
        if frame is not None and not frame.eager:
            return (frame.whole(self),) * self.group.local_size
        self._check_readable_now()
        return self.group.shards(self.group.replicate(self._whole()))

    def joined(self, value: Any, row: Any = None, *, in_replica: bool) -> Any:
        """Returns the whole value, or a row of it, given what a program has.

        Args:
            value: A replica's part, or all parts together.
            row: Which row; default all.
            in_replica: Whether it is a replica's part.
        """
        if in_replica:
            return self.parts.gathered(value, row)
        whole = self.parts.trimmed(value)
        return whole if row is None else whole[row]

    def taken_apart(self, whole: Any, *, in_replica: bool) -> Any:
        """Returns what a program has, given the whole value."""
        return self.parts.own(whole) if in_replica else self.parts.padded(whole)

    def __getitem__(self, key: Any) -> Any:
        frame = state.current_frame()
        if frame is None or frame.eager or not _is_one_number(key):
            return super().__getitem__(key)
        self.check_own_replica()
        if state.records():
            recorded = self._recorded(frame, key)
            return super().__getitem__(key) if recorded is None else recorded
        return frame.whole(self, key)

    def _value(self) -> Any:
        frame = state.current_frame()
        recorded = None
        if frame is not None and state.records():
            self.check_own_replica()
            recorded = self._recorded(frame)
        return super()._value() if recorded is None else recorded

    def _recorded(self, frame: state.StateFrame, row: Any = None) -> Any | None:
        """Returns the whole value, or a row, for tapes that watch the variable; ``None`` if none does.

        In a replica, as ``value_and_grad`` has it: the gradient of the part is summed over the replicas
        and scattered where the value is gathered, that of the tap is the replica's own.
        """
        if not (frame.spmd and frame.in_parts):
            return None
        part = frame.read(self)
        with frame.around():
            tap = jnp.zeros(tuple(dim or 0 for dim in self._shape), self._dtype)
        pair = state.noted_parts(self, part, tap)
        return None if pair is None else self.parts.tapped(*pair, row)

    def _current_value(self) -> Any:
        self.check_own_replica()
        frame = state.current_frame()
        return super()._current_value() if frame is None else frame.whole(self)

    def _eager_value(self) -> Any:
        replica = self.check_own_replica()
        if replica is None or replica.replica_index is None:
            return self.group.local_view(self.group.replicate(self._whole()))
        if not self.group.spans_processes:
            return self._whole(self.group.local_devices[replica.replica_index])
        return replica.merge_per_replica(
            f"read of {self.name!r}", lambda *_: self.group.local_view(self._whole()), ()
        )

    def _whole(self, device: jax.Device | None = None) -> Any:
        """Returns the whole value on a device of this process; of several processes all must ask."""
        return evaluate_now(lambda: self._gather(device))

    def _gather(self, device: jax.Device | None) -> Any:
        parts, group = self.parts, self.group
        if group.spans_processes:
            program = _gathering(parts, group)
            [whole] = launch(program, (self.snapshot(),), group, f"read of {self.name!r}")
            return whole
        home = group.local_devices[0] if device is None else device
        # Until they are copied: nobody is told to keep these blocks, which a step may overwrite.
        with STORAGE_LOCK:
            blocks = [jax.device_put(block, home) for block in group.shards(self._stored())]
            return parts.trimmed(jnp.concatenate(blocks, axis=parts.dim))

    def numpy(self) -> np.ndarray[Any, Any]:
        """Returns the value as a NumPy array, without making it whole on a device."""
        if state.current_frame() is not None:
            return super().numpy()
        self.check_own_replica()
        self._check_readable_now()
        return np.array(self.value_on_host())

    def value_on_host(self) -> np.ndarray[Any, Any]:
        """Returns the present value, without making it whole on a device of this process."""
        if self.group.spans_processes:
            return super().value_on_host()
        with STORAGE_LOCK:
            blocks = [np.asarray(block) for block in self.group.shards(self._stored())]
            whole = np.concatenate(blocks, axis=self.parts.dim)
        return whole[tuple(slice(size) for size in self.parts.shape)]

    def __repr__(self) -> str:
        if self.group.spans_processes:  # reading it takes all of them
            return f"<sg.Variable '{self._name}:0' shape={self._shape} dtype={self.dtype.name}>"
        return super().__repr__()

    # --- updating ---------------------------------------------------------------------------------

    def _update(self, update: Update, operand: Any) -> Self:
        if not update.reducible:
            self._check_reducible(update, "of a mirrored or fully sharded variable")
        return super()._update(update, operand)

    def apply(self, update: Update, operand: Any) -> None:
        """Replaces the value by the update of it, here and now."""
        frame = state.current_frame()
        if frame is None:
            self.check_not_tracing(operand.array if isinstance(operand, InParts) else operand)
            if update.sparse and self.group.spans_processes:
                # It gathers the whole by a program: the lock for that comes first, and waiting for other
                # calls before both.
                admitted([self], lambda: self._replace_in_turn(update, operand))
            else:
                change(self, lambda: self._replace(update, operand))
        elif not frame.in_parts:
            super().apply(update, operand)
        else:
            frame.check_writable(self)
            frame.write(self, self._updated_in(frame, update, operand))

    def _replace_in_turn(self, update: Update, operand: Any) -> None:
        with LAUNCH_LOCK:
            change(self, lambda: self._replace(update, operand))

    def _replace(self, update: Update, operand: Any) -> None:
        self.store(self._updated(update, operand), shared=update is updates.ASSIGN)

    def _updated(self, update: Update, operand: Any) -> Any:
        if isinstance(operand, InParts):
            placed = operand.array
        elif update.sparse:
            local = jax.tree.map(self.group.local_view, (self._whole(), operand))
            return self.place(update.apply(*jax.device_put(local, local[0].sharding)))
        else:
            placed = self.place(operand)
        if update is updates.ASSIGN:
            return placed
        return _map_blocks(update.apply, self._stored(), placed)

    def _updated_in(self, frame: state.StateFrame, update: Update, operand: Any) -> Any:
        if update.sparse:
            new = update.apply(frame.whole(self), operand)
            return self.taken_apart(new, in_replica=frame.spmd)
        if not isinstance(operand, InParts):
            operand = InParts(self.taken_apart(operand, in_replica=frame.spmd))
        return update.apply(frame.read(self), operand.array)

    def _aggregate(self, value: Any) -> Any:
        reduce_op, frame = self._aggregation.reduce_op, state.current_frame()
        adds = reduce_op in (ReduceOp.SUM, ReduceOp.MEAN)
        if frame is None or not frame.in_parts or not isinstance(value, SpmdPerReplica) or not adds:
            return super()._aggregate(value)
        total = frame.known_sum(value.local)
        if total is None:
            total = self.parts.summed(value.local)
        return InParts(total if reduce_op is ReduceOp.SUM else total / self.group.size)


@functools.cache
def _gathering(parts: Parts, group: ReplicaGroup) -> Any:
    """Returns a program that makes the parts of several processes whole in each of them."""
    return jax.jit(lambda stored: [parts.trimmed(stored)], out_shardings=group.replicated)


when_backend_ends(_gathering.cache_clear)


def _is_one_number(key: Any) -> bool:
    if isinstance(key, (bool, np.bool_)):
        return False
    if isinstance(key, (int, np.integer)):
        return True
    is_scalar = isinstance(key, (jax.Array, np.ndarray)) and key.ndim == 0
    return is_scalar and jnp.issubdtype(key.dtype, jnp.integer)


def _map_blocks(fn: Callable[..., Any], *arrays: jax.Array) -> jax.Array:
    """Returns ``fn`` of the blocks of arrays that lie in the same way, block by block."""
    blocks = zip(*([shard.data for shard in addressable_shards(a)] for a in arrays), strict=True)
    first = arrays[0]
    return jax.make_array_from_single_device_arrays(
        first.shape, first.sharding, [fn(*of_device) for of_device in blocks]
    )


_register(FullyShardedVariable)
