"""``ShardingContext``: the replicas that a program is partitioned over, and conversions between layouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from stratagem._src.core.types import EquationParams, Primitive
from stratagem._src.mesh.replica_group import REPLICA_AXIS, ReplicaGroup
from stratagem._src.partitioner.layout import (
    PARTIAL,
    REPLICATED,
    Layout,
    Padded,
    Partial,
    Sharded,
    Value,
)
from stratagem._src.variables.shard_layout import ShardLayout

__all__ = ["ShardingContext"]


@dataclass(frozen=True, slots=True)
class ShardingContext:
    """Converts values between layouts, inside ``shard_map`` over the replica axis.

    Attributes:
        group: The replicas.
    """

    group: ReplicaGroup

    @property
    def size(self) -> int:
        """The number of replicas."""
        return self.group.size

    def can_shard(self, length: int) -> bool:
        """Returns whether a dimension of this length has equal shards."""
        return length % self.size == 0

    def local_shape(self, shape: Sequence[int], dim: int) -> tuple[int, ...]:
        """Returns the shape of one replica's shard."""
        local = list(shape)
        local[dim] //= self.size
        return tuple(local)

    def global_length(self, value: Value, dim: int) -> int:
        """Returns the length of a dimension in the global program."""
        length = int(value.array.shape[dim])
        return length * self.size if value.layout == Sharded(dim) else length

    def shard(self, value: Value, dim: int) -> Value:
        """Returns this replica's shard of a replicated value."""
        length = value.array.shape[dim] // self.size
        start = jax.lax.axis_index(REPLICA_AXIS) * length
        array = jax.lax.dynamic_slice_in_dim(value.array, start, length, dim)
        return Value(array, Sharded(dim))

    def global_shape(self, value: Value) -> tuple[int, ...]:
        """Returns the shape of a value in the global program."""
        shape = list(value.array.shape)
        if isinstance(value.layout, Sharded):
            shape[value.layout.dim] *= self.size
        elif isinstance(value.layout, Padded):
            shape[value.layout.dim] = value.layout.length
        return tuple(shape)

    def padded_shard(self, value: Value, dim: int) -> Value:
        """Returns this replica's padded shard of a replicated value."""
        shards = ShardLayout(value.array.shape, self.size, dim)
        return Value(shards.local_shard(value.array), Padded(dim, shards.shape[dim]))

    def as_partial(self, value: Value) -> Value:
        """Returns a replicated value as a partial one: the first replica has it, the others zeros."""
        if isinstance(value.layout, Partial):
            return value
        is_first = jax.lax.axis_index(REPLICA_AXIS) == 0
        zeros = jnp.zeros_like(value.array)
        return Value(
            jax.lax.select(jnp.broadcast_to(is_first, zeros.shape), value.array, zeros), PARTIAL
        )

    def all_gather(self, value: Value) -> Value:
        """Returns a sharded or padded value as a replicated one."""
        assert isinstance(value.layout, (Sharded, Padded))
        shards = ShardLayout(self.global_shape(value), self.size, value.layout.dim)
        return Value(shards.all_gather(value.array), REPLICATED)

    def reshard(self, value: Value, layout: Layout) -> Value:
        """Returns a value in another layout. Every conversion goes through the replicated value."""
        if value.layout == layout:
            return value
        replicated = value
        if isinstance(value.layout, Partial):
            replicated = Value(jax.lax.psum(value.array, REPLICA_AXIS), REPLICATED)
        elif isinstance(value.layout, (Sharded, Padded)):
            replicated = self.all_gather(value)
        if isinstance(layout, Sharded):
            return self.shard(replicated, layout.dim)
        if isinstance(layout, Padded):
            return self.padded_shard(replicated, layout.dim)
        return self.as_partial(replicated) if isinstance(layout, Partial) else replicated

    def bind(
        self, primitive: Primitive, params: EquationParams, arrays: Sequence[Any]
    ) -> list[Any]:
        """Applies a primitive to this replica's arrays."""
        results = primitive.bind(*arrays, **primitive.get_bind_params(params))
        return list(results) if primitive.multiple_results else [results]
