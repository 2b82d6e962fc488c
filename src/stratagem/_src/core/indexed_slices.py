"""``IndexedSlices``: some rows of a larger array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from stratagem._src.core.int64_guard import guard_int64
from stratagem._src.core.types import ArrayLike

__all__ = ["IndexedSlices"]


class IndexedSlices:
    """Rows ``values[i]`` that belong at position ``indices[i]`` of a larger array.

    The gradient of an embedding lookup has this form: a reduction over replicas concatenates the rows and
    never builds the dense array. Rows with the same index add up.

    Args:
        values: Array whose first dimension counts the rows.
        indices: Integer vector of the same length.
        dense_shape: Shape of the array the rows belong to, if known.

    >>> import jax.numpy as jnp
    >>> rows = IndexedSlices(jnp.ones((2, 3)), jnp.array([0, 2]), dense_shape=(4, 3))
    >>> rows.to_dense().sum(axis=1).tolist()
    [3.0, 0.0, 3.0, 0.0]
    """

    __slots__ = ("_dense_shape", "_indices", "_values")

    def __init__(
        self, values: ArrayLike, indices: ArrayLike, dense_shape: Sequence[int] | None = None
    ) -> None:
        self._values = values
        self._indices = indices
        self._dense_shape = None if dense_shape is None else tuple(int(dim) for dim in dense_shape)

    @property
    def values(self) -> Any:
        """The rows."""
        return self._values

    @property
    def indices(self) -> Any:
        """The position of each row."""
        return self._indices

    @property
    def dense_shape(self) -> tuple[int, ...] | None:
        """Shape of the array that the rows belong to, or ``None``."""
        return self._dense_shape

    @property
    def dtype(self) -> Any:
        """Element type of the rows."""
        return self._values.dtype

    def to_dense(self) -> jax.Array:
        """Returns the dense array, with rows of the same index added up.

        Raises:
            ValueError: If ``dense_shape`` is not known.
        """
        if self._dense_shape is None:
            raise ValueError("to_dense() needs dense_shape. Give it to IndexedSlices(...).")
        dense = jnp.zeros(self._dense_shape, self.dtype)
        return dense.at[jnp.asarray(guard_int64(self._indices))].add(self._values)

    def __neg__(self) -> IndexedSlices:
        return IndexedSlices(-self._values, self._indices, self._dense_shape)

    def __repr__(self) -> str:
        return (
            f"IndexedSlices(values={self._values!r}, indices={self._indices!r}, "
            f"dense_shape={self._dense_shape})"
        )


jax.tree_util.register_pytree_node(
    IndexedSlices,
    lambda slices: ((slices._values, slices._indices), slices._dense_shape),
    lambda dense_shape, children: IndexedSlices(*children, dense_shape=dense_shape),
)
