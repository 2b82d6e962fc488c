"""``SyncOnReadVariable``: a value of its own in each replica, combined when read."""

from __future__ import annotations

import contextlib
import functools
import math
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.core.errors import VariableError
from stratagem._src.core.reduce_op import ReduceOp
from stratagem._src.jax_compat.tracing import is_tracer
from stratagem._src.mesh.replica_group import REPLICA_AXIS, ReplicaGroup
from stratagem._src.values.per_replica import PerReplica, SpmdPerReplica
from stratagem._src.variables import access as state
from stratagem._src.variables import updates
from stratagem._src.variables.atomicity import STORAGE_LOCK, change
from stratagem._src.variables.distributed_variable import DistributedVariable
from stratagem._src.variables.updates import Update
from stratagem._src.variables.variable import _register
from stratagem._src.variables.variable_options import VariableAggregation

__all__ = ["SyncOnReadVariable", "counting_once", "counts_once"]

_BYTES_TO_ADD_ON_HOST = 1 << 16


class _Counting(threading.local):
    once = False


_counting = _Counting()


def counts_once() -> bool:
    """Returns whether this thread is in a block of ``counting_once``."""
    return _counting.once


@contextlib.contextmanager
def counting_once() -> Iterator[None]:
    """Creates ``ON_READ`` variables whose values, given outside of replicas, count once.

    The first value is the total of all replicas, and ``assign_add`` and ``assign_sub`` change the total by
    their value. Elsewhere it is as in TensorFlow: each replica begins with the first value, so that the
    total is a multiple of it, and the updates are refused because they could also mean each replica's part.
    """
    before, _counting.once = _counting.once, True
    try:
        yield
    finally:
        _counting.once = before


class SyncOnReadVariable(DistributedVariable):
    """A variable that each replica updates for itself; reading it from outside combines them.

    Made by ``Variable(..., synchronization=VariableSynchronization.ON_READ)``. Use it for counters and
    statistics, where a reduction at every update would be wasted.

    >>> import stratagem as sg
    >>> strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> with strategy.scope():
    ...     seen = sg.Variable(0., synchronization=sg.VariableSynchronization.ON_READ,
    ...                        aggregation=sg.VariableAggregation.SUM)
    >>> _ = strategy.run(lambda: seen.assign_add(3.))
    >>> float(seen)
    6.0
    """

    # `_parts` holds the replicas' values after eager updates, `_array` after everything else.
    __slots__ = ("_counts_once", "_parts")
    made_of_array = "_parts"

    def __init__(self, *args: Any, counts_once: bool = False, **kwargs: Any) -> None:
        self._counts_once = counts_once
        super().__init__(*args, **kwargs)

    # --- storage ----------------------------------------------------------------------------------

    def initialize(self, value: Any) -> None:
        """Stores the first value in each replica."""
        self._parts: list[Any] | None = None
        runtime = self._strategy.extended
        total = runtime.expected_value(value, self._name)
        if total is not None:
            self.restore_total(total)
        else:
            value = runtime.leader_value(value, self._name)
            first = self.group.first_local
            parts = self._first_parts(value)
            self._array = self.group.join(parts[first : first + self.group.local_size])
            self._shared = True
            adds_up = self._aggregation is VariableAggregation.SUM and not self._counts_once
            total = np.asarray(value) * (self.group.size if adds_up else 1)
        runtime.note_created(self, total)

    def _own_array(self) -> Any:
        if self._parts is not None:
            joined = self.group.join(self._parts)
            self._array, self._parts, self._shared = joined, None, True
        return super()._own_array()

    def store(self, array: Any, *, shared: bool = False) -> None:
        """Replaces the global array of all replicas' values."""
        state.before_change(self)
        # In one go: a signal handler must not find the new array with the old parts.
        self._array, self._parts, self._shared = array, None, shared

    def restore_snapshot(self, content: Any) -> None:
        """Stores again what ``snapshot`` returned."""
        with STORAGE_LOCK:
            self._array, self._parts, self._shared = content, None, True

    def stored_now(self) -> Any | None:
        """Returns the stored array, which the next update replaces; ``None`` after an eager one."""
        return self._array if self._parts is None else None

    def _first_parts(self, value: Any) -> list[Any]:
        """Returns what each replica begins with, given the first value."""
        if self._counts_once and self._aggregation is VariableAggregation.SUM:
            # All of it in one replica, as in restore_total: equal shares would be rounded.
            return [value, *[jnp.zeros_like(value)] * (self.group.size - 1)]
        return [value] * self.group.size

    @property
    def _is_scalar(self) -> bool:
        return len(self._shape) == 0

    @property
    def values(self) -> tuple[Any, ...]:
        """Each replica's value, on its own device."""
        frame = state.current_frame()
        if frame is not None and not frame.eager:
            return self.per_replica().values
        self._check_readable_now()
        return self._components()

    def _components(self) -> tuple[Any, ...]:
        with STORAGE_LOCK:
            before = self._before_others()
            if before is not None:
                return tuple(self.group.split(before[1], self._is_scalar))
            if self._parts is None:
                self._parts = list(self.group.split(self._own_array(), self._is_scalar))
            self._shared = True
            return tuple(self._parts)

    @property
    def split_in_program(self) -> int | None:
        """Along which dim of the array in a program each replica has a block: the first."""
        return 0

    @property
    def program_shape(self) -> tuple[int, ...]:
        """Shape of the global array of all replicas' values."""
        return self.group.global_shape(super().program_shape)

    def program_value(self, value: Any) -> Any:
        """Returns each replica's part of a first value."""
        parts = [jnp.asarray(part) for part in self._first_parts(value)]
        return jnp.stack(parts) if self._is_scalar else jnp.concatenate(parts)

    def replica_value(self, value: Any) -> Any:
        """Returns the part of a first value that the replica has which a program is traced for."""
        parts = self._first_parts(value)
        if all(part is value for part in parts):
            return value
        return jnp.stack(parts)[jax.lax.axis_index(REPLICA_AXIS)]

    def stores_program_results(self, group: ReplicaGroup | None) -> bool:
        """Returns whether the stored array is one value for all: no."""
        return False

    def passes_as_stored(self, group: ReplicaGroup | None) -> bool:
        """Returns whether the stored array goes in and out of a program as it is: yes."""
        return True

    def take_for_program(self, group: ReplicaGroup | None, donate: bool) -> Any:
        """Returns the global array of all replicas' values."""
        array = self._stored()
        return jnp.copy(array) if donate and self._shared else array

    def accept_from_program(self, group: ReplicaGroup | None, array: Any, shared: bool) -> None:
        """Stores the global array of all replicas' values."""
        self._array, self._parts, self._shared = array, None, shared

    # --- reading ----------------------------------------------------------------------------------

    def per_replica(self) -> PerReplica:
        """Returns every replica's value, in the form that fits the present context."""
        frame = state.current_frame()
        if frame is None or frame.eager:
            with STORAGE_LOCK:
                self._shared = True
                array = self._stored()
            return PerReplica.from_global(self.group, array, scalar=self._is_scalar)
        if frame.spmd:
            return SpmdPerReplica(self.group, frame.read(self))
        return PerReplica.from_global(self.group, frame.read(self), scalar=self._is_scalar)

    def _current_value(self) -> Any:
        frame = state.current_frame()
        if frame is not None and (self.group.size == 1 or self.check_own_replica() is not None):
            value = frame.read(self)
            return value.reshape(self._shape) if self.group.size == 1 else value
        return super()._current_value() if frame is None else self._reduced()

    def _eager_value(self) -> Any:
        replica = self.check_own_replica()
        if replica is not None or self.group.size == 1:
            return self._components()[(replica and replica.replica_index) or 0]
        return self._reduced()

    def _reduced(self) -> Any:
        if self._aggregation is VariableAggregation.NONE:
            raise VariableError(
                f"Variable {self.name!r} (ON_READ) has aggregation NONE, so its replicas' values cannot "
                "be read as one. Create it with aggregation SUM, MEAN or ONLY_FIRST_REPLICA, or use "
                "strategy.experimental_local_results(variable)."
            )
        runtime = self._strategy.extended
        reduce_op = self._aggregation.reduce_op
        if reduce_op is None:
            return runtime.first_replica(self.per_replica())
        if self._can_add_on_host() and reduce_op in (ReduceOp.SUM, ReduceOp.MEAN):
            total = self.sum_on_host()
            return jnp.asarray(total / self.group.size if reduce_op is ReduceOp.MEAN else total)
        return runtime.reduce_value(reduce_op, self.per_replica())

    def _can_add_on_host(self) -> bool:
        """Returns whether the host has all parts at hand, so that a program would take longer."""
        group, dtype = self.group, self._dtype
        return (
            state.current_frame() is None
            and group.serialize_programs
            and not group.spans_processes
            and dtype.itemsize >= 4  # others are added up in a wider type
            and dtype.itemsize * math.prod(self.program_shape) <= _BYTES_TO_ADD_ON_HOST
        )

    def sum_on_host(self) -> np.ndarray[Any, Any]:
        """Returns the sum of what the replicas of this process have."""
        with STORAGE_LOCK:
            self._shared = True
            before = self._before_others()
            array = None if before is None else before[1]
            parts: Sequence[Any] = () if before is not None else self._parts or ()
            if not parts:
                parts = self.group.shards(self._own_array() if array is None else array)
        shape = super().program_shape
        return functools.reduce(np.add, [np.asarray(part).reshape(shape) for part in parts])

    # --- updating ---------------------------------------------------------------------------------

    def _update(self, update: Update, operand: Any) -> Self:
        replica = self.check_own_context()
        frame = state.current_frame()
        if replica is None and self.group.size > 1:
            self._update_all(update, operand)
        else:
            checked = self.check_operand(update, operand)
            if frame is not None:
                frame.check_writable(self)
                old = frame.read(self)
                new = update.apply(old.reshape(self._shape), checked)
                frame.write(self, new.reshape(old.shape))
            else:
                self.check_not_tracing(checked)
                index = (replica and replica.replica_index) or 0
                change(self, lambda: self._set_part(index, update, checked))
        return self

    def _set_part(self, index: int, update: Update, operand: Any) -> None:
        """Updates one replica's value; the caller holds the storage lock, by ``change``."""
        state.before_change(self)
        parts = list(self._components())
        placed = jax.device_put(operand, self.group.local_devices[index])
        parts[index] = update.apply(parts[index], placed)
        self._parts = parts

    def _set_parts(self, update: Update, operands: list[Any]) -> None:
        if update is updates.ASSIGN:
            self.store(self.group.join(operands), shared=True)
            return
        for index, operand in enumerate(operands):
            self._set_part(index, update, operand)

    def _update_all(self, update: Update, operand: Any) -> None:
        frame = state.current_frame()
        if isinstance(operand, SpmdPerReplica) and frame is not None:
            frame.check_writable(self)
            local = self.check_operand(update, operand.local)
            frame.write(self, update.apply(frame.read(self), local))
            return
        if isinstance(operand, PerReplica):
            parts = [self.check_operand(update, part) for part in operand.values]
        else:
            checked = self.check_operand(update, operand)
            if frame is None and self.group.on_cpu and not is_tracer(checked):
                checked = jax.tree.map(np.asarray, checked)  # quick to divide and to place
            parts = self._shares(update, checked)
            if frame is None:
                first = self.group.first_local
                parts = parts[first : first + self.group.local_size]
        if frame is None:
            self.check_not_tracing(parts)
            change(self, lambda: self._set_parts(update, parts))
            return
        frame.check_writable(self)
        old = frame.read(self)
        if frame.spmd:
            mine = jax.tree.map(
                lambda *of_all: jnp.stack(of_all)[jax.lax.axis_index(REPLICA_AXIS)], *parts
            )
            frame.write(self, update.apply(old, mine))
            return
        blocks = old.reshape((self.group.size, *self._shape))
        new = jnp.stack([update.apply(blocks[i], part) for i, part in enumerate(parts)])
        frame.write(self, new.reshape(old.shape))

    def _shares(self, update: Update, value: Any) -> list[Any]:
        """Returns what each replica gets of a value given in cross-replica context."""
        size = self.group.size
        if self._aggregation is not VariableAggregation.SUM:
            return [value] * size
        if update in (updates.ASSIGN_ADD, updates.ASSIGN_SUB) and self._counts_once:
            return [value, *[jnp.zeros_like(value)] * (size - 1)]
        if update is not updates.ASSIGN:
            raise VariableError(
                f"{update.name}() of {self.name!r} (ON_READ, aggregation SUM) in cross-replica context "
                "is ambiguous: each replica's part, or their sum? Call it inside strategy.run(), or "
                "use assign() with the new total."
            )
        if jnp.issubdtype(self._dtype, jnp.inexact):
            return [value / size] * size
        share = value // size
        return [value - share * (size - 1), *[share] * (size - 1)]

    def restore_total(self, value: Any) -> None:
        """Makes the replicas' values such that reading them gives ``value``, to the last bit."""
        others = np.zeros_like(value) if self._aggregation is VariableAggregation.SUM else value
        parts = [
            value if index == 0 else others
            for index in range(
                self.group.first_local, self.group.first_local + self.group.local_size
            )
        ]
        self.restore_snapshot(self.group.join(parts))

    def __repr__(self) -> str:
        return self._describe_components("SyncOnReadVariable")


_register(SyncOnReadVariable)
