"""``FullyShardedVariable``: each replica stores one shard and gathers the full value when it reads it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.core.reduce_op import ReduceOp
from stratagem._src.core.types import ArrayLike, Tensor
from stratagem._src.jax_compat.compile_time_eval import evaluate_now
from stratagem._src.mesh.addressable_shards import addressable_shards
from stratagem._src.mesh.backend_lifetime import when_backend_ends
from stratagem._src.mesh.dispatch_queue import launch
from stratagem._src.mesh.replica_group import ReplicaGroup
from stratagem._src.values.per_replica import SpmdPerReplica
from stratagem._src.variables import frames, updates
from stratagem._src.variables.distributed_variable import AggregatingVariable
from stratagem._src.variables.locking import (
    STORAGE_LOCK,
    call_as_owner,
    change,
    change_owned,
)
from stratagem._src.variables.shard_layout import ShardLayout
from stratagem._src.variables.updates import Update
from stratagem._src.variables.variable import _register

__all__ = ["FullyShardedVariable", "ShardedOperand", "map_blocks"]


@dataclass(frozen=True, slots=True)
class ShardedOperand:
    """An operand with the variable's sharding: a replica's shard, or the global array of all shards."""

    array: Any


class FullyShardedVariable(AggregatingVariable):
    """A variable that is sharded over the replicas (FSDP, ZeRO-3); reading it all-gathers the full value.

    ``Variable(...)`` creates one in a ``FullySharded`` block. Code uses it like a mirrored variable: it has
    the same value in every replica and the same updates. In a compiled step the full value exists from its
    read to its last use, gradients are reduce-scattered, and updates touch only the shards.

    ``variable[i]`` with one integer gathers only row ``i`` if rows are sharded, which is usual for arrays
    with three dims or more: so a ``lax.scan`` over a stack of layers holds one layer at a time.

    JAX equivalent: an array with a ``NamedSharding`` over the replica axis.

    >>> import stratagem as sg
    >>> strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> with strategy.scope(), sg.distribute.experimental.FullySharded(min_size=2):
    ...     x = sg.Variable([1.0, 2.0])
    >>> x
    <sg.Variable 'Variable:0' shape=(2,) dtype=float32, numpy=array([1., 2.], dtype=float32)>
    """

    __slots__ = ()

    cached_attribute = None

    @property
    def shard_layout(self) -> ShardLayout:
        """How the value is sharded."""
        return ShardLayout.of(tuple(dim or 0 for dim in self._shape), self.group.size)

    # --- storage ----------------------------------------------------------------------------------

    def initialize(self, value: ArrayLike) -> None:
        """Stores the initial value; with several processes, the leader's."""
        runtime = self._strategy.extended
        expected = runtime.expected_value(value, self._name)
        first = runtime.leader_value(value, self._name) if expected is None else expected
        super().initialize(first)
        runtime.note_created(self, self.group.local_view(first))

    def place(self, value: ArrayLike) -> Any:
        """Returns the full value as a global array with each shard on its replica's device."""
        layout = self.shard_layout
        return self.group.shard_along(layout.pad(self.group.local_view(value)), layout.dim)

    @property
    def program_shard_dim(self) -> int | None:
        """The dim of a program's array that is sharded over the replicas."""
        return self.shard_layout.dim

    @property
    def program_shape(self) -> tuple[int, ...]:
        """Shape of the global array of all shards."""
        return self.shard_layout.padded_shape

    @property
    def replica_shape(self) -> tuple[int, ...]:
        """Shape of one shard."""
        return self.shard_layout.shard_shape

    def program_value(self, value: ArrayLike) -> Any:
        """Returns the full value as the global array of all shards."""
        return self.shard_layout.pad(value)

    def replica_value(self, value: ArrayLike) -> Any:
        """Returns a replica's shard of the full value."""
        return self.shard_layout.local_shard(value)

    def stores_program_results(self, group: ReplicaGroup | None) -> bool:
        """Returns ``False``: the stored array is the shards, not the full value."""
        return False

    def passes_as_stored(self, group: ReplicaGroup | None) -> bool:
        """Returns ``True``: programs take and return the stored array."""
        return True

    def take_for_program(self, group: ReplicaGroup | None, donate: bool) -> Any:
        """Returns the global array of all shards."""
        array = self._stored()
        return jnp.copy(array) if donate and self._shared else array

    # --- reading ----------------------------------------------------------------------------------

    @property
    def values(self) -> tuple[Any, ...]:
        """The full value, once on each replica's device."""
        frame = frames.current_frame()
        if frame is not None and not frame.eager:
            return (frame.full_value(self),) * self.group.local_size
        self._check_readable_now()
        return self.group.shards(self.group.replicate(self._full_value()))

    def unshard(self, value: Tensor, row: ArrayLike | None = None, *, in_replica: bool) -> Any:
        """Returns the full value, or one row of it, given a program's array.

        Args:
            value: A replica's shard, or the global array of all shards.
            row: The row's index. Default: all rows.
            in_replica: Whether ``value`` is a replica's shard.
        """
        if in_replica:
            return self.shard_layout.all_gather(value, row)
        full = self.shard_layout.unpad(value)
        return full if row is None else full[row]

    def shard_value(self, full: ArrayLike, *, in_replica: bool) -> Any:
        """Returns a program's array, given the full value: the inverse of ``unshard``."""
        return self.shard_layout.local_shard(full) if in_replica else self.shard_layout.pad(full)

    def __getitem__(self, key: ArrayLike) -> Any:
        frame = frames.current_frame()
        if frame is None or frame.eager or not _is_integer_scalar(key):
            return super().__getitem__(key)
        self.check_own_replica()
        if frames.records():
            recorded = self._recorded(frame, key)
            return super().__getitem__(key) if recorded is None else recorded
        return frame.as_computed(self, frame.full_value(self, key))

    def _value(self) -> Any:
        frame = frames.current_frame()
        recorded = None
        if frame is not None and frames.records() and not self._interrupts_trace():
            self.check_own_replica()
            recorded = self._recorded(frame)
        return super()._value() if recorded is None else recorded

    def _recorded(self, frame: frames.StateFrame, row: ArrayLike | None = None) -> Any | None:
        """Returns the full value, or one row, for tapes that watch the variable; ``None`` if none does.

        As in ``value_and_grad``, a tape may need either of two gradients. The gradient of the shard is
        reduce-scattered over the replicas where the value is gathered. The gradient of the tap, zeros of
        the full shape, is the replica's own.
        """
        if not (frame.spmd and frame.holds_shards):
            return None
        shard = frame.read(self)
        with frame.in_own_trace():
            tap = jnp.zeros(tuple(dim or 0 for dim in self._shape), self._dtype)
        pair = frames.record_shard_read(self, shard, tap)
        return None if pair is None else self.shard_layout.all_gather_with_tap(*pair, row)

    def _current_value(self) -> Any:
        self.check_own_replica()
        frame = frames.current_frame()
        if frame is None:
            return super()._current_value()
        return frame.as_computed(self, frame.full_value(self))

    def _eager_value(self) -> Any:
        replica = self.check_own_replica()
        if replica is None or replica.replica_index is None:
            return self.group.local_view(self.group.replicate(self._full_value()))
        if not self.group.spans_processes:
            return self._full_value(self.group.local_devices[replica.replica_index])
        return replica.merge_per_replica(
            f"read of {self.name!r}", lambda *_: self.group.local_view(self._full_value()), ()
        )

    def _full_value(self, device: jax.Device | None = None) -> Any:
        """Returns the full value on a local device; with several processes a collective of all of them."""
        return evaluate_now(lambda: self._gather(device))

    def _gather(self, device: jax.Device | None) -> Any:
        layout, group = self.shard_layout, self.group
        if group.spans_processes:
            program = _unshard_program(layout, group)
            [full] = launch(program, (self.snapshot(),), group, f"read of {self.name!r}")
            return full
        home = group.local_devices[0] if device is None else device
        # Under the lock until the blocks are copied: they are not marked as shared, so a step that donates
        # the stored array may overwrite them.
        with STORAGE_LOCK:
            blocks = [jax.device_put(block, home) for block in group.shards(self._stored())]
            return layout.unpad(jnp.concatenate(blocks, axis=layout.dim))

    def numpy(self) -> np.ndarray[Any, Any]:
        """Returns the value as a NumPy array, without gathering it on a device."""
        if frames.current_frame() is not None or self._interrupts_trace():
            return super().numpy()
        self.check_own_replica()
        self._check_readable_now()
        return np.array(self.value_on_host())

    def value_on_host(self) -> np.ndarray[Any, Any]:
        """Returns the current value, without gathering it on a device of this process."""
        if self.group.spans_processes:
            return super().value_on_host()
        with STORAGE_LOCK:
            blocks = [np.asarray(block) for block in self.group.shards(self._stored())]
            padded = np.concatenate(blocks, axis=self.shard_layout.dim)
        return padded[tuple(slice(size) for size in self.shard_layout.shape)]

    def __repr__(self) -> str:
        if self.group.spans_processes:  # a read is a collective of all processes
            return f"<sg.Variable '{self._name}:0' shape={self._shape} dtype={self.dtype.name}>"
        return super().__repr__()

    # --- updating ---------------------------------------------------------------------------------

    def _update(self, update: Update, operand: ArrayLike) -> Self:
        if not update.reducible:
            self._check_reducible(update, "of a mirrored or fully sharded variable")
        return super()._update(update, operand)

    def apply(self, update: Update, operand: ArrayLike) -> None:
        """Applies the update to the value now."""
        frame = frames.current_frame()
        if frame is None:
            self.check_not_tracing(
                operand.array if isinstance(operand, ShardedOperand) else operand
            )
            if update.sparse and self.group.spans_processes:
                # The update gathers the full value, with a program of all processes. Own the variable
                # meanwhile instead of holding a lock: other processes may be late.
                call_as_owner([self], lambda _: self._replace_owned(update, operand))
            else:
                change(self, lambda: self._replace(update, operand))
        elif not frame.holds_shards:
            super().apply(update, operand)
        else:
            frame.check_writable(self)
            frame.write(self, self._updated_in(frame, update, operand))

    def _replace_owned(self, update: Update, operand: ArrayLike) -> None:
        updated = self._updated(update, operand)
        change_owned(lambda: self.store(updated))

    def _replace(self, update: Update, operand: ArrayLike) -> None:
        self.store(self._updated(update, operand), shared=update is updates.ASSIGN)

    def _updated(self, update: Update, operand: ArrayLike) -> Any:
        if isinstance(operand, ShardedOperand):
            placed = operand.array
        elif update.sparse:
            # A shard may not hold the rows: update the full value and shard the result.
            local = jax.tree.map(self.group.local_view, (self._full_value(), operand))
            return self.place(update.apply(*jax.device_put(local, local[0].sharding)))
        else:
            placed = self.place(operand)
        if update is updates.ASSIGN:
            return placed
        return map_blocks(update.apply, self._stored(), placed)

    def _updated_in(self, frame: frames.StateFrame, update: Update, operand: ArrayLike) -> Any:
        if update.sparse:
            new = update.apply(frame.full_value(self), operand)
            return self.shard_value(new, in_replica=frame.spmd)
        if not isinstance(operand, ShardedOperand):
            operand = ShardedOperand(self.shard_value(operand, in_replica=frame.spmd))
        return update.apply(frame.read(self), operand.array)

    def _aggregate(self, value: ArrayLike) -> Any:
        reduce_op, frame = self._aggregation.reduce_op, frames.current_frame()
        adds = reduce_op in (ReduceOp.SUM, ReduceOp.MEAN)
        if (
            frame is None
            or not frame.holds_shards
            or not isinstance(value, SpmdPerReplica)
            or not adds
        ):
            return super()._aggregate(value)
        total = frame.reduced_shard(value.local)
        if total is None:
            total = self.shard_layout.reduce_scatter(value.local)
        return ShardedOperand(total if reduce_op is ReduceOp.SUM else total / self.group.size)


@functools.cache
def _unshard_program(layout: ShardLayout, group: ReplicaGroup) -> Any:
    """Returns a program that gathers the shards of several processes into the full value in each."""
    return jax.jit(lambda stored: [layout.unpad(stored)], out_shardings=group.replicated)


when_backend_ends(_unshard_program.cache_clear)


def _is_integer_scalar(key: ArrayLike) -> bool:
    if isinstance(key, (bool, np.bool_)):
        return False
    if isinstance(key, (int, np.integer)):
        return True
    is_scalar = isinstance(key, (jax.Array, np.ndarray)) and key.ndim == 0
    return is_scalar and jnp.issubdtype(key.dtype, jnp.integer)


def map_blocks(fn: Callable[..., Any], *arrays: jax.Array) -> jax.Array:
    """Applies ``fn`` shard by shard to arrays with the same sharding, without communication."""
    blocks = zip(*([shard.data for shard in addressable_shards(a)] for a in arrays), strict=True)
    first = arrays[0]
    return jax.make_array_from_single_device_arrays(
        first.shape, first.sharding, [fn(*of_device) for of_device in blocks]
    )


_register(FullyShardedVariable)
