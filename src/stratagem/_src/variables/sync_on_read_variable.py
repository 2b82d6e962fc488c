"""``SyncOnReadVariable``: a separate value in each replica, aggregated when read."""

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
from stratagem._src.core.types import ArrayLike, PyTree
from stratagem._src.jax_compat.tracing import is_tracer
from stratagem._src.mesh.replica_group import REPLICA_AXIS, ReplicaGroup
from stratagem._src.process.signal_handlers import in_signal_handler
from stratagem._src.values.per_replica import PerReplica, SpmdPerReplica
from stratagem._src.variables import frames, transactions, updates
from stratagem._src.variables.distributed_variable import DistributedVariable
from stratagem._src.variables.locking import STORAGE_LOCK, change
from stratagem._src.variables.updates import Update
from stratagem._src.variables.variable import _register
from stratagem._src.variables.variable_options import VariableAggregation

__all__ = ["SyncOnReadVariable", "counting_once", "counts_once"]

_MAX_HOST_SUM_BYTES = 1 << 16


class _Counting(threading.local):
    once = False


_counting = _Counting()


def counts_once() -> bool:
    """Returns whether this thread is in a ``counting_once`` block."""
    return _counting.once


@contextlib.contextmanager
def counting_once() -> Iterator[None]:
    """Creates ``ON_READ`` variables whose values in cross-replica context mean the total.

    The initial value is the total of all replicas, and ``assign_add`` and ``assign_sub`` change the total
    by their operand. Outside of this block TensorFlow's rules apply: each replica starts with the initial
    value, so the total is a multiple of it, and such updates raise because they could also mean each
    replica's value.
    """
    before, _counting.once = _counting.once, True
    try:
        yield
    finally:
        _counting.once = before


class SyncOnReadVariable(DistributedVariable):
    """A variable that each replica updates independently; a read in cross-replica context aggregates them.

    ``Variable(..., synchronization=VariableSynchronization.ON_READ)`` creates one. Use it for counters and
    statistics, to avoid a reduction at every update.

    >>> import stratagem as sg
    >>> strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> with strategy.scope():
    ...     seen = sg.Variable(0., synchronization=sg.VariableSynchronization.ON_READ,
    ...                        aggregation=sg.VariableAggregation.SUM)
    >>> _ = strategy.run(lambda: seen.assign_add(3.))
    >>> float(seen)
    6.0
    """

    # `_array` is the global array of the replicas' values, which programs take and return. Eager updates go
    # to `_local_arrays`, one array per local replica; if it is not None, `_array` may be out of date.
    __slots__ = ("_counts_once", "_local_arrays")
    cached_attribute = "_local_arrays"

    def __init__(self, *args: PyTree, counts_once: bool = False, **kwargs: PyTree) -> None:
        self._counts_once = counts_once
        super().__init__(*args, **kwargs)

    # --- storage ----------------------------------------------------------------------------------

    def initialize(self, value: ArrayLike) -> None:
        """Stores the initial value in each replica."""
        self._local_arrays: list[Any] | None = None
        runtime = self._strategy.extended
        total = runtime.expected_value(value, self._name)
        if total is not None:
            self.restore_total(total)
        else:
            value = runtime.leader_value(value, self._name)
            first = self.group.first_local
            components = self._initial_components(value)
            self._array = self.group.assemble(components[first : first + self.group.local_size])
            self._shared = True
            adds_up = self._aggregation is VariableAggregation.SUM and not self._counts_once
            total = np.asarray(value) * (self.group.size if adds_up else 1)
        runtime.note_created(self, total)

    def _own_array(self) -> Any:
        if self._local_arrays is not None:
            array = self.group.assemble(self._local_arrays)
            self._array, self._local_arrays, self._shared = array, None, True
        return super()._own_array()

    def store(self, array: ArrayLike, *, shared: bool = False) -> None:
        """Replaces the global array of all replicas' values."""
        transactions.before_change(self)
        # In one statement: a signal handler must not see the new array with the old components.
        self._array, self._local_arrays, self._shared = array, None, shared

    def restore_snapshot(self, content: Any) -> None:
        """Stores the content that ``snapshot`` returned."""
        with STORAGE_LOCK:
            self._array, self._local_arrays, self._shared = content, None, True

    def stored_now(self) -> Any | None:
        """Returns the stored global array; ``None`` after an eager update, which leaves it out of date."""
        return self._array if self._local_arrays is None else None

    def _initial_components(self, value: ArrayLike) -> list[Any]:
        """Returns each replica's initial value."""
        if self._counts_once and self._aggregation is VariableAggregation.SUM:
            # All of it in the first replica, as in restore_total: equal shares would be rounded.
            return [value, *[jnp.zeros_like(value)] * (self.group.size - 1)]
        return [value] * self.group.size

    @property
    def _is_scalar(self) -> bool:
        return len(self._shape) == 0

    @property
    def values(self) -> tuple[Any, ...]:
        """Each replica's value, on its own device."""
        frame = frames.current_frame()
        if frame is not None and not frame.eager:
            return self.per_replica().values
        self._check_readable_now()
        return self._components()

    def _components(self) -> tuple[Any, ...]:
        with STORAGE_LOCK:
            before = self._before_others()
            if before is not None:
                return tuple(self.group.split(before[1], self._is_scalar))
            if self._local_arrays is None:
                self._local_arrays = list(self.group.split(self._own_array(), self._is_scalar))
            self._shared = True
            return tuple(self._local_arrays)

    @property
    def program_shard_dim(self) -> int | None:
        """The dim of a program's array that is sharded over the replicas: the first."""
        return 0

    @property
    def program_shape(self) -> tuple[int, ...]:
        """Shape of the global array of all replicas' values."""
        return self.group.global_shape(super().program_shape)

    def program_value(self, value: ArrayLike) -> Any:
        """Returns the replicas' initial values as one global array."""
        components = [jnp.asarray(component) for component in self._initial_components(value)]
        return jnp.stack(components) if self._is_scalar else jnp.concatenate(components)

    def replica_value(self, value: ArrayLike) -> Any:
        """Returns the initial value of the replica that runs the program."""
        components = self._initial_components(value)
        if all(component is value for component in components):
            return value
        return jnp.stack(components)[jax.lax.axis_index(REPLICA_AXIS)]

    def stores_program_results(self, group: ReplicaGroup | None) -> bool:
        """Returns ``False``: the stored array holds a value for each replica."""
        return False

    def passes_as_stored(self, group: ReplicaGroup | None) -> bool:
        """Returns ``True``: programs take and return the stored array."""
        return True

    def take_for_program(self, group: ReplicaGroup | None, donate: bool) -> Any:
        """Returns the global array of all replicas' values."""
        array = self._stored()
        return jnp.copy(array) if donate and self._shared else array

    def accept_from_program(
        self, group: ReplicaGroup | None, array: ArrayLike, shared: bool
    ) -> None:
        """Stores the global array of all replicas' values."""
        self._array, self._local_arrays, self._shared = array, None, shared

    # --- reading ----------------------------------------------------------------------------------

    def per_replica(self) -> PerReplica:
        """Returns every replica's value, in the form that fits the current context."""
        frame = frames.current_frame()
        if frame is None or frame.eager:
            with STORAGE_LOCK:
                self._shared = True
                array = self._stored()
            return PerReplica.from_global(self.group, array, scalar=self._is_scalar)
        if frame.spmd:
            return SpmdPerReplica(self.group, frame.read(self))
        return PerReplica.from_global(self.group, frame.read(self), scalar=self._is_scalar)

    def _current_value(self) -> Any:
        frame = frames.current_frame()
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
                "be read as one value. Create it with aggregation SUM, MEAN or ONLY_FIRST_REPLICA, or use "
                "strategy.experimental_local_results(variable)."
            )
        runtime = self._strategy.extended
        reduce_op = self._aggregation.reduce_op
        if reduce_op is None:
            return runtime.first_replica(self.per_replica())
        if self._can_add_on_host():
            # Not jnp.asarray, which runs a program: JAX refuses to run one in a signal handler that
            # interrupts its compilation.
            return jax.device_put(self._reduced_on_host())
        return runtime.reduce_value(reduce_op, self.per_replica())

    def value_on_host(self) -> np.ndarray[Any, Any]:
        """Returns the current value as a NumPy array, even while a function is traced."""
        on_host = self._aggregation in (VariableAggregation.SUM, VariableAggregation.MEAN)
        if on_host and not self.group.spans_processes and self.check_own_replica() is None:
            return self._reduced_on_host()
        return super().value_on_host()

    def _reduced_on_host(self) -> np.ndarray[Any, Any]:
        """Returns the sum or mean of this process's replicas' values, without a program of XLA."""
        total = self.sum_on_host()
        if self._aggregation is VariableAggregation.MEAN:
            total = total / self.group.size
        return total.astype(self._dtype, copy=False)

    def _can_add_on_host(self) -> bool:
        """Returns whether all values are small and in host memory, so that a program would take longer."""
        group = self.group
        return (
            frames.current_frame() is None
            and group.serialize_programs
            and not group.spans_processes
            and (self._is_small() or in_signal_handler())
        )

    def _is_small(self) -> bool:
        dtype = self._dtype
        return (
            dtype.itemsize >= 4  # smaller types are summed in a wider type
            and dtype.itemsize * math.prod(self.program_shape) <= _MAX_HOST_SUM_BYTES
        )

    def sum_on_host(self) -> np.ndarray[Any, Any]:
        """Returns the sum of this process's replicas' values."""
        with STORAGE_LOCK:
            self._shared = True
            before = self._before_others()
            array = None if before is None else before[1]
            components: Sequence[Any] = () if before is not None else self._local_arrays or ()
            if not components:
                components = self.group.shards(self._own_array() if array is None else array)
        shape = super().program_shape
        wide = self._dtype
        if jnp.issubdtype(wide, jnp.floating) and wide.itemsize < 4:
            wide = np.dtype(np.float32)
        return functools.reduce(
            np.add, [np.asarray(component, wide).reshape(shape) for component in components]
        )

    # --- updating ---------------------------------------------------------------------------------

    def _update(self, update: Update, operand: ArrayLike) -> Self:
        replica = self.check_own_context()
        frame = frames.current_frame()
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
                change(self, lambda: self._update_component(index, update, checked))
        return self

    def _update_component(self, index: int, update: Update, operand: ArrayLike) -> None:
        """Updates one replica's value; the caller holds the storage lock, by ``change``."""
        transactions.before_change(self)
        components = list(self._components())
        placed = jax.device_put(operand, self.group.local_devices[index])
        components[index] = update.apply(components[index], placed)
        self._local_arrays = components

    def _update_components(self, update: Update, operands: list[Any]) -> None:
        if update is updates.ASSIGN:
            self.store(self.group.assemble(operands), shared=True)
            return
        for index, operand in enumerate(operands):
            self._update_component(index, update, operand)

    def _update_all(self, update: Update, operand: ArrayLike) -> None:
        frame = frames.current_frame()
        if isinstance(operand, SpmdPerReplica) and frame is not None:
            frame.check_writable(self)
            local = self.check_operand(update, operand.local)
            frame.write(self, update.apply(frame.read(self), local))
            return
        if isinstance(operand, PerReplica):
            components = [self.check_operand(update, component) for component in operand.values]
        else:
            checked = self.check_operand(update, operand)
            if frame is None and self.group.on_cpu and not is_tracer(checked):
                checked = jax.tree.map(
                    np.asarray, checked
                )  # NumPy is faster to divide and to place
            components = self._shares(update, checked)
            if frame is None:
                first = self.group.first_local
                components = components[first : first + self.group.local_size]
        if frame is None:
            self.check_not_tracing(components)
            change(self, lambda: self._update_components(update, components))
            return
        frame.check_writable(self)
        old = frame.read(self)
        if frame.spmd:
            mine = jax.tree.map(
                lambda *of_all: jnp.stack(of_all)[jax.lax.axis_index(REPLICA_AXIS)], *components
            )
            frame.write(self, update.apply(old, mine))
            return
        blocks = old.reshape((self.group.size, *self._shape))
        new = jnp.stack(
            [update.apply(blocks[i], component) for i, component in enumerate(components)]
        )
        frame.write(self, new.reshape(old.shape))

    def _shares(self, update: Update, value: ArrayLike) -> list[Any]:
        """Returns each replica's operand for a value given in cross-replica context."""
        size = self.group.size
        if self._aggregation is not VariableAggregation.SUM:
            return [value] * size
        if update in (updates.ASSIGN_ADD, updates.ASSIGN_SUB) and self._counts_once:
            return [value, *[jnp.zeros_like(value)] * (size - 1)]
        if update is not updates.ASSIGN:
            raise VariableError(
                f"{update.name}() of {self.name!r} (ON_READ, aggregation SUM) in cross-replica context "
                "is ambiguous: each replica's value, or their sum? Call it inside strategy.run(), or "
                "use assign() with the new total."
            )
        if jnp.issubdtype(self._dtype, jnp.inexact):
            return [value / size] * size
        share = value // size
        return [value - share * (size - 1), *[share] * (size - 1)]

    def restore_total(self, value: ArrayLike) -> None:
        """Sets the replicas' values so that a read returns exactly ``value``."""
        others = np.zeros_like(value) if self._aggregation is VariableAggregation.SUM else value
        components = [
            value if index == 0 else others
            for index in range(
                self.group.first_local, self.group.first_local + self.group.local_size
            )
        ]
        self.restore_snapshot(self.group.assemble(components))

    def __repr__(self) -> str:
        return self._describe_components("SyncOnReadVariable")


_register(SyncOnReadVariable)
