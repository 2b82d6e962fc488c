"""``Mirrored``: a value with the same component on every replica."""

from __future__ import annotations

from typing import Any

import jax

from stratagem._src.core.types import ArrayLike
from stratagem._src.jax_compat.tracing import is_tracer
from stratagem._src.mesh.replica_group import ReplicaGroup
from stratagem._src.values.array_operators import ArrayOperators
from stratagem._src.values.distributed_values import DistributedValues, describe

__all__ = ["Mirrored"]


class Mirrored(ArrayOperators, DistributedValues):
    """The same array on every replica, usable like an array.

    ``Strategy.extended.reduce_to`` returns one. In a JAX function or ``jax.tree.map`` it becomes the
    replicated array that it holds.

    >>> import stratagem as sg
    >>> strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> per_replica = strategy.experimental_distribute_values_from_function(
    ...     lambda ctx: float(ctx.replica_id_in_sync_group))
    >>> total = strategy.extended.reduce_to("SUM", per_replica, per_replica)
    >>> float(total + 1)
    2.0
    """

    __slots__ = ("_array", "_group")

    def __init__(self, group: ReplicaGroup, array: ArrayLike) -> None:
        self._group = group
        self._array = array

    def _value(self) -> Any:
        return self._group.local_view(self._array)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        shape: tuple[int, ...] = self._array.shape
        return shape

    @property
    def dtype(self) -> Any:
        """Element type of the array."""
        return self._array.dtype

    @property
    def values(self) -> tuple[Any, ...]:
        """The copies, each on its own device."""
        if is_tracer(self._array):
            return (self._array,) * self._group.local_size
        return self._group.shards(self._array)

    def __copy__(self) -> Mirrored:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Mirrored:
        return self  # JAX arrays are immutable

    def __repr__(self) -> str:
        if is_tracer(self._array):
            return f"Mirrored:{{{self._array!r}}}"
        return describe("Mirrored", [repr(value) for value in self.values])


jax.tree_util.register_pytree_node(
    Mirrored, lambda value: ((value._value(),), None), lambda _, children: children[0]
)
