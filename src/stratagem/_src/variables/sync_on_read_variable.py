"""``SyncOnReadVariable``: a value of its own in each replica, combined when read."""

from __future__ import annotations

import functools
import math
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.core.errors import VariableError
from stratagem._src.core.reduce_op import ReduceOp
from stratagem._src.core.tracing import is_tracer
from stratagem._src.mesh.replica_group import REPLICA_AXIS, ReplicaGroup
from stratagem._src.values.per_replica import PerReplica, SpmdPerReplica
from stratagem._src.variables import access as state
from stratagem._src.variables import updates
from stratagem._src.variables.distributed_variable import DistributedVariable
from stratagem._src.variables.updates import Update
from stratagem._src.variables.variable import STORAGE_LOCK, _register
from stratagem._src.variables.variable_options import VariableAggregation

__all__ = ["SyncOnReadVariable"]

_BYTES_TO_ADD_ON_HOST = 1 << 16


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
    __slots__ = ("_adds_once", "_parts")
    made_of_array = "_parts"

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
            self._array = self._per_replica_copies(value)
            self._shared = True
            adds_up = self._aggregation is VariableAggregation.SUM
            total = np.asarray(value) * (self.group.size if adds_up else 1)
        runtime.note_created(self, total)

    def _stored(self) -> Any:
        if self._parts is not None:
            self._array, self._parts = self.group.join(self._parts), None
            self._shared = True
        return super()._stored()

    def store(self, array: Any, *, shared: bool = False) -> None:
        """Replaces the global array of all replicas' values."""
        super().store(array, shared=shared)
        self._parts = None

    def snapshot(self) -> Any:
        """Returns the global array of all replicas' values."""
        with STORAGE_LOCK:
            self._stored()
            return super().snapshot()

    def restore_snapshot(self, content: Any) -> None:
        """Stores again what ``snapshot`` returned."""
        with STORAGE_LOCK:
            self._parts = None
            super().restore_snapshot(content)

    def _per_replica_copies(self, value: Any) -> Any:
        return self.group.join([value] * self.group.local_size)

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
            if self._parts is None:
                self._parts = list(self.group.split(self._stored(), self._is_scalar))
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
        """Returns the value once for each replica."""
        copies = [jnp.asarray(value)] * self.group.size
        return jnp.stack(copies) if self._is_scalar else jnp.concatenate(copies)

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
        self._parts = None
        self._array, self._shared = array, shared

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

    def _value(self) -> Any:
        frame = state.current_frame()
        if frame is not None and (self.group.size == 1 or self.check_own_replica() is not None):
            value = frame.read(self)
            return value.reshape(self._shape) if self.group.size == 1 else value
        return super()._value() if frame is None else self._reduced()

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
            parts = self._parts or self.group.shards(self._stored())
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
                self._set_part((replica and replica.replica_index) or 0, update, checked)
        return self

    def _set_part(self, index: int, update: Update, operand: Any) -> None:
        with STORAGE_LOCK:
            journal = state.current_journal()
            if journal is not None:
                journal.record(self)
            parts = list(self._components())
            placed = jax.device_put(operand, self.group.local_devices[index])
            parts[index] = update.apply(parts[index], placed)
            self._parts = parts

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
            if update is updates.ASSIGN:
                with STORAGE_LOCK:
                    self.store(self.group.join(parts), shared=True)
                return
            for index, part in enumerate(parts):
                self._set_part(index, update, part)
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
        if update in (updates.ASSIGN_ADD, updates.ASSIGN_SUB) and getattr(
            self, "_adds_once", False
        ):
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

    def add_once_across_replicas(self) -> None:
        """Makes ``assign_add`` and ``assign_sub`` in cross-replica context change the sum by their value.

        Without it they are refused, as in TensorFlow: they could also mean each replica's part.
        """
        self._adds_once = True

    def __repr__(self) -> str:
        return self._describe_components("SyncOnReadVariable")


_register(SyncOnReadVariable)
