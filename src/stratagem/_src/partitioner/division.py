"""``Division``: the replicas among which a program is divided, and how a value changes its layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from stratagem._src.mesh.replica_group import REPLICA_AXIS, ReplicaGroup
from stratagem._src.partitioner.layout import (
    PARTIAL,
    WHOLE,
    Layout,
    Padded,
    Partial,
    Split,
    Value,
)
from stratagem._src.variables.shard_layout import Parts

__all__ = ["Division"]


@dataclass(frozen=True, slots=True)
class Division:
    """Works inside ``shard_map`` over the axis of the replicas.

    Attributes:
        group: The replicas.
    """

    group: ReplicaGroup

    @property
    def size(self) -> int:
        """The number of replicas."""
        return self.group.size

    def can_split(self, length: int) -> bool:
        """Returns whether a dimension of this length has an equal part for every replica."""
        return length % self.size == 0

    def local_shape(self, shape: Sequence[int], dim: int) -> tuple[int, ...]:
        """Returns the shape of one replica's block."""
        local = list(shape)
        local[dim] //= self.size
        return tuple(local)

    def whole_length(self, value: Value, dim: int) -> int:
        """Returns how long a dimension of a value is in the whole program."""
        length = int(value.array.shape[dim])
        return length * self.size if value.layout == Split(dim) else length

    def block(self, value: Value, dim: int) -> Value:
        """Returns a whole value as one that is split."""
        length = value.array.shape[dim] // self.size
        start = jax.lax.axis_index(REPLICA_AXIS) * length
        array = jax.lax.dynamic_slice_in_dim(value.array, start, length, dim)
        return Value(array, Split(dim))

    def whole_shape(self, value: Value) -> tuple[int, ...]:
        """Returns the shape of a value in the whole program."""
        shape = list(value.array.shape)
        if isinstance(value.layout, Split):
            shape[value.layout.dim] *= self.size
        elif isinstance(value.layout, Padded):
            shape[value.layout.dim] = value.layout.length
        return tuple(shape)

    def padded_block(self, value: Value, dim: int) -> Value:
        """Returns a whole value as one that is divided where it cannot be split."""
        parts = Parts(value.array.shape, self.size, dim)
        return Value(parts.own(value.array), Padded(dim, parts.shape[dim]))

    def addend(self, value: Value) -> Value:
        """Returns a whole value as the sum of itself and zeros."""
        if isinstance(value.layout, Partial):
            return value
        is_first = jax.lax.axis_index(REPLICA_AXIS) == 0
        zeros = jnp.zeros_like(value.array)
        return Value(
            jax.lax.select(jnp.broadcast_to(is_first, zeros.shape), value.array, zeros), PARTIAL
        )

    def gathered(self, value: Value) -> Value:
        """Returns a value that is split or padded as a whole one."""
        assert isinstance(value.layout, (Split, Padded))
        parts = Parts(self.whole_shape(value), self.size, value.layout.dim)
        return Value(parts.gathered(value.array), WHOLE)

    def convert(self, value: Value, layout: Layout) -> Value:
        """Returns a value in another layout."""
        if value.layout == layout:
            return value
        whole = value
        if isinstance(value.layout, Partial):
            whole = Value(jax.lax.psum(value.array, REPLICA_AXIS), WHOLE)
        elif isinstance(value.layout, (Split, Padded)):
            whole = self.gathered(value)
        if isinstance(layout, Split):
            return self.block(whole, layout.dim)
        if isinstance(layout, Padded):
            return self.padded_block(whole, layout.dim)
        return self.addend(whole) if isinstance(layout, Partial) else whole

    def bind(self, primitive: Any, params: Any, arrays: Sequence[Any]) -> list[Any]:
        """Applies a primitive to what this replica has."""
        results = primitive.bind(*arrays, **primitive.get_bind_params(params))
        return list(results) if primitive.multiple_results else [results]
