"""``ShardLayout``: how an array is sharded, so that each replica holds one shard of it."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.core.types import ArrayLike, Tensor
from stratagem._src.mesh.replica_group import REPLICA_AXIS

__all__ = ["ShardLayout"]


@dataclass(frozen=True)
class ShardLayout:
    """Equal blocks of an array along one of its dims, one for each replica.

    If the number of replicas does not divide the dim, padding follows the last elements. No read returns
    the padding.

    Attributes:
        shape: Shape of the full array, which has one dim or more.
        count: Number of replicas.
        dim: The dim that is sharded.
    """

    shape: tuple[int, ...]
    count: int
    dim: int

    @classmethod
    @functools.cache
    def of(cls, shape: tuple[int, ...], count: int) -> ShardLayout:
        """Returns the layout along the dim that needs the least padding.

        Ties go to the first dim, whose shards concatenate without moving elements. But an array of three
        dims or more may be a stack of layers that are read one at a time: there the first dim comes last,
        so that each layer is sharded.

        >>> ShardLayout.of((5, 4), 2)
        ShardLayout(shape=(5, 4), count=2, dim=1)
        >>> ShardLayout.of((5, 3), 2).shard_shape
        (3, 3)
        >>> ShardLayout.of((8, 6, 6), 2).dim
        1
        """
        dims = list(range(len(shape)))
        if len(dims) > 2:
            dims = [*dims[1:], 0]
        dim = min(dims, key=lambda dim: -shape[dim] % count / max(shape[dim], 1))
        return cls(shape, count, dim)

    @property
    def row_layout(self) -> ShardLayout | None:
        """Layout of one row of the array; ``None`` if a replica holds complete rows."""
        return ShardLayout(self.shape[1:], self.count, self.dim - 1) if self.dim else None

    @property
    def length(self) -> int:
        """Length of a shard along the sharded dim."""
        return -(-self.shape[self.dim] // self.count)

    @property
    def padding(self) -> int:
        """Number of padding elements along the sharded dim."""
        return -self.shape[self.dim] % self.count

    @property
    def shard_shape(self) -> tuple[int, ...]:
        """Shape of one shard."""
        return (*self.shape[: self.dim], self.length, *self.shape[self.dim + 1 :])

    @property
    def padded_shape(self) -> tuple[int, ...]:
        """Shape of the global array of all shards, padding included."""
        padded = self.length * self.count
        return (*self.shape[: self.dim], padded, *self.shape[self.dim + 1 :])

    def pad(self, full: ArrayLike) -> Any:
        """Returns the full array with padding at its end."""
        if not self.padding:
            return full
        widths = [(0, self.padding if dim == self.dim else 0) for dim in range(len(self.shape))]
        return (jnp if isinstance(full, jax.Array) else np).pad(full, widths)

    def unpad(self, padded: Tensor) -> Any:
        """Returns the global array of all shards without its padding: the full array."""
        if not self.padding:
            return padded
        return jax.lax.slice_in_dim(padded, 0, self.shape[self.dim], axis=self.dim)

    # --- inside the program that all replicas run (shard_map over the replica axis) --------------------

    def local_shard(self, full: ArrayLike) -> Any:
        """Returns this replica's shard of the full array."""
        start = jax.lax.axis_index(REPLICA_AXIS) * self.length
        padded = self.pad(jnp.asarray(full))
        return jax.lax.dynamic_slice_in_dim(padded, start, self.length, self.dim)

    def all_gather(self, shard: Tensor, row: ArrayLike | None = None) -> Any:
        """Returns the full array in each replica, given its shard; or one row of it."""
        if row is not None:
            row_layout = self.row_layout
            return (
                self.all_gather(shard)[row]
                if row_layout is None
                else row_layout.all_gather(shard[row])
            )
        padded = jax.lax.all_gather(shard, REPLICA_AXIS, axis=self.dim, tiled=True)
        return self.unpad(padded)

    def reduce_scatter(self, full: ArrayLike) -> Any:
        """Returns this replica's shard of the sum of the replicas' full arrays."""
        return jax.lax.psum_scatter(
            self.pad(jnp.asarray(full)), REPLICA_AXIS, scatter_dimension=self.dim, tiled=True
        )

    def all_gather_with_tap(self, shard: Tensor, tap: Tensor, row: ArrayLike | None = None) -> Any:
        """Returns what ``all_gather`` returns, with a second gradient: that of ``tap``.

        The gradient of ``shard`` is summed over the replicas, because the transpose of an all-gather is a
        reduce-scatter. The gradient of ``tap`` is this replica's own, unreduced. Dead-code elimination
        removes the one that is not used.
        """
        if row is not None:
            row_layout = self.row_layout
            if row_layout is None:
                return _gather_with_tap(self, shard, tap)[row]
            return _gather_with_tap(row_layout, shard[row], tap[row])
        return _gather_with_tap(self, shard, tap)


# The tap is zeros of the full shape. It does not enter the value, only the tangent: so no replica adds
# zeros to the gathered array at run time.
@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _gather_with_tap(layout: ShardLayout, shard: Tensor, tap: Tensor) -> Any:
    return layout.all_gather(shard)


@_gather_with_tap.defjvp
def _gather_with_tap_jvp(
    layout: ShardLayout, primals: tuple[Any, Any], tangents: tuple[Any, Any]
) -> Any:
    return _gather_with_tap(layout, *primals), layout.all_gather(tangents[0]) + tangents[1]
