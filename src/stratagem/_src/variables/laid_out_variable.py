"""``LaidOutVariable``: sharded over the devices of each replica, and equal in all replicas."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from stratagem._src.core.types import ArrayLike, PyTree, Tensor
from stratagem._src.current_strategy.protocols import StrategyProtocol
from stratagem._src.mesh.logical_devices import PartitionedGroup, request_layouts
from stratagem._src.mesh.replica_group import ReplicaGroup
from stratagem._src.mesh.sharding_rules import Layout
from stratagem._src.variables import frames, updates
from stratagem._src.variables.fully_sharded_variable import map_blocks
from stratagem._src.variables.locking import STORAGE_LOCK, change
from stratagem._src.variables.mirrored_variable import MirroredVariable
from stratagem._src.variables.updates import Update
from stratagem._src.variables.variable import Variable, _register

__all__ = ["LaidOutVariable", "current_layout_source", "laid_out_like", "layout_for"]


class LaidOutVariable(MirroredVariable):
    """A mirrored variable whose copy in each replica is sharded over the replica's devices.

    ``Variable(...)`` creates one in the scope of a strategy with ``sharding_rules``, if a rule matches its
    name. Code uses it like a mirrored variable. In a compiled step XLA partitions what is computed from
    it; outside of replicas a read returns the sharded array.

    JAX equivalent: an array with a ``NamedSharding`` over the axes of the model.

    >>> import stratagem as sg
    >>> rules = sg.distribute.experimental.ShardingRules({"x": ("tensor",)}, axes={"tensor": 2})
    >>> strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"], sharding_rules=rules)
    >>> with strategy.scope():
    ...     x = sg.Variable([1.0, 2.0], name="x")
    >>> x.layout, x.snapshot().addressable_shards[0].data
    ((('tensor',),), Array([1.], dtype=float32))
    """

    __slots__ = ("_layout",)

    def __init__(
        self, strategy: StrategyProtocol, layout: Layout, *args: PyTree, **kwargs: PyTree
    ) -> None:
        self._layout = layout
        request_layouts()
        super().__init__(strategy, *args, **kwargs)

    @property
    def layout(self) -> Layout:
        """For each dim the axes that it is sharded over; dims that are left out are not sharded."""
        return self._layout

    @property
    def _group(self) -> PartitionedGroup:
        group = self.group
        assert isinstance(group, PartitionedGroup)
        return group

    # --- storage ----------------------------------------------------------------------------------

    def place(self, value: ArrayLike) -> Any:
        """Returns ``value`` with this variable's layout; of another shape, with a copy on every device."""
        if isinstance(value, (jax.Array, np.ndarray)) and value.shape == tuple(self._shape):
            return self._group.lay_out(value, self._layout)
        return super().place(value)

    def program_sharding(self, group: ReplicaGroup) -> NamedSharding:
        """Returns the sharding of the array that a program returns."""
        return group.program_sharding(self._group.layout_sharding(self._layout))

    @property
    def program_layout(self) -> Layout:
        """How a program's array is sharded."""
        return self._layout

    def constrained(self, value: Tensor) -> Any:
        """Returns a traced value with this variable's layout."""
        return self._group.constrain_layout(value, self._layout)

    def stores_program_results(self, group: ReplicaGroup | None) -> bool:
        """Returns ``False``: results are not sharded."""
        return False

    # --- reading ----------------------------------------------------------------------------------

    def _current_value(self) -> Any:
        value = super()._current_value()
        return value if frames.current_frame() is None else self.constrained(value)

    def _copies(self) -> tuple[Any, ...]:
        return tuple(map(self._full_value, range(self.group.local_size)))

    def _eager_value(self) -> Any:
        replica = self.check_own_replica()
        if replica is not None and replica.replica_index is not None:
            return self._full_value(replica.replica_index)
        return super()._eager_value()

    def _full_value(self, index: int) -> jax.Array:
        """Returns the full value on the first device of a local replica."""
        # Under the lock until the blocks are copied: they are not marked as shared, so a step that donates
        # the stored array may overwrite them.
        with STORAGE_LOCK:
            own = self._group.of_local_replica(self._stored(), index)
            return jax.device_put(own, self.group.local_devices[index])

    def numpy(self) -> np.ndarray[Any, Any]:
        """Returns the value as a NumPy array, without gathering it on a device."""
        if frames.current_frame() is not None or self._interrupts_trace():
            return super().numpy()
        self.check_own_replica()
        self._check_readable_now()
        return np.array(self.value_on_host())

    def value_on_host(self) -> np.ndarray[Any, Any]:
        """Returns the current value, without gathering it on a device."""
        with STORAGE_LOCK:
            return np.asarray(self._group.of_local_replica(self._stored(), 0))

    # --- updating ---------------------------------------------------------------------------------

    def apply(self, update: Update, operand: ArrayLike) -> None:
        """Applies the update to the value now."""
        if frames.current_frame() is not None:
            super().apply(update, operand)
            return
        self.check_not_tracing(operand)
        change(
            self,
            lambda: self.store(self._updated(update, operand), shared=update is updates.ASSIGN),
        )

    def _updated(self, update: Update, operand: ArrayLike) -> Any:
        if update.sparse:
            # A shard may not hold the rows: update the full value and shard the result.
            local = jax.tree.map(self.group.local_view, (self._full_value(0), operand))
            return self.place(update.apply(*jax.device_put(local, local[0].sharding)))
        placed = self.place(jnp.asarray(operand))
        return (
            placed if update is updates.ASSIGN else map_blocks(update.apply, self._stored(), placed)
        )


class _Source(threading.local):
    variable: Variable | None = None


_source = _Source()


def current_layout_source() -> Variable | None:
    """Returns the variable whose layout new variables of its shape get in this thread, if any."""
    return _source.variable


def layout_for(source: Variable, shape: tuple[int, ...]) -> Layout | None:
    """Returns the layout that a new variable takes from ``source``; ``None`` if it is replicated."""
    if isinstance(source, LaidOutVariable) and tuple(source.shape) == shape:
        return source.layout
    return None


@contextlib.contextmanager
def laid_out_like(variable: Variable | None) -> Iterator[None]:
    """Gives new variables the layout of ``variable`` if they have its shape; others are replicated.

    ``None`` leaves it to the rules.
    """
    before, _source.variable = _source.variable, variable
    try:
        yield
    finally:
        _source.variable = before


_register(LaidOutVariable)
