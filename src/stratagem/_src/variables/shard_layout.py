"""``Parts``: how an array is divided, so that each replica has one part of it."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.mesh.replica_group import REPLICA_AXIS

__all__ = ["Parts"]


@dataclass(frozen=True)
class Parts:
    """Equal blocks of an array along one of its dims, one for each replica.

    Where the number of replicas does not divide the dim, something follows the last elements that is in no
    value that anybody reads.

    Attributes:
        shape: Of the whole array, which has one dim or more.
        count: The number of replicas.
        dim: Along which dim.
    """

    shape: tuple[int, ...]
    count: int
    dim: int

    @classmethod
    @functools.cache
    def of(cls, shape: tuple[int, ...], count: int) -> Parts:
        """Returns the parts along the dim that needs the least padding.

        Of equals the first, which can be joined without moving elements. But an array of three dims or
        more may be a stack, one layer of which is to be read alone: then the first comes last.

        >>> Parts.of((5, 4), 2)
        Parts(shape=(5, 4), count=2, dim=1)
        >>> Parts.of((5, 3), 2).part_shape
        (3, 3)
        >>> Parts.of((8, 6, 6), 2).dim
        1
        """
        dims = list(range(len(shape)))
        if len(dims) > 2:
            dims = [*dims[1:], 0]
        dim = min(dims, key=lambda dim: -shape[dim] % count / max(shape[dim], 1))
        return cls(shape, count, dim)

    @property
    def of_row(self) -> Parts | None:
        """How a row of the array is divided; ``None`` where a replica has all of some rows."""
        return Parts(self.shape[1:], self.count, self.dim - 1) if self.dim else None

    @property
    def length(self) -> int:
        """How long a part is in that dim."""
        return -(-self.shape[self.dim] // self.count)

    @property
    def padding(self) -> int:
        """Number of elements that follow the last one in that dim."""
        return -self.shape[self.dim] % self.count

    @property
    def part_shape(self) -> tuple[int, ...]:
        """The shape of a part."""
        return (*self.shape[: self.dim], self.length, *self.shape[self.dim + 1 :])

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The shape of all parts together."""
        padded = self.length * self.count
        return (*self.shape[: self.dim], padded, *self.shape[self.dim + 1 :])

    def padded(self, whole: Any) -> Any:
        """Returns a whole array with what follows the last elements."""
        if not self.padding:
            return whole
        widths = [(0, self.padding if dim == self.dim else 0) for dim in range(len(self.shape))]
        return (jnp if isinstance(whole, jax.Array) else np).pad(whole, widths)

    def trimmed(self, stored: Any) -> Any:
        """Returns all parts together as the whole array."""
        if not self.padding:
            return stored
        return jax.lax.slice_in_dim(stored, 0, self.shape[self.dim], axis=self.dim)

    # --- inside the program that all replicas run -----------------------------------------------------

    def own(self, whole: Any) -> Any:
        """Returns this replica's part."""
        start = jax.lax.axis_index(REPLICA_AXIS) * self.length
        padded = self.padded(jnp.asarray(whole))
        return jax.lax.dynamic_slice_in_dim(padded, start, self.length, self.dim)

    def gathered(self, part: Any, row: Any = None) -> Any:
        """Returns the whole array in each replica, given its part; or one row of it."""
        if row is not None:
            of_row = self.of_row
            return self.gathered(part)[row] if of_row is None else of_row.gathered(part[row])
        stored = jax.lax.all_gather(part, REPLICA_AXIS, axis=self.dim, tiled=True)
        return self.trimmed(stored)

    def summed(self, whole: Any) -> Any:
        """Returns this replica's part of the sum of what the replicas have."""
        return jax.lax.psum_scatter(
            self.padded(jnp.asarray(whole)), REPLICA_AXIS, scatter_dimension=self.dim, tiled=True
        )

    def tapped(self, part: Any, tap: Any, row: Any = None) -> Any:
        """Returns the same as ``gathered``, with a second gradient: that of ``tap``, this replica's alone.

        The gradient of ``part`` is summed over the replicas, for that is what it means to have gathered
        it. Whichever of the two nobody uses is not computed.
        """
        if row is not None:
            of_row = self.of_row
            if of_row is None:
                return _tapped(self, part, tap)[row]
            return _tapped(of_row, part[row], tap[row])
        return _tapped(self, part, tap)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _tapped(parts: Parts, part: Any, tap: Any) -> Any:
    return parts.gathered(part)


@_tapped.defjvp
def _tapped_jvp(parts: Parts, primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> Any:
    return _tapped(parts, *primals), parts.gathered(tangents[0]) + tangents[1]
