"""``ShardInitializer``: an initial value that a function computes for one shard at a time."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from stratagem._src.core.errors import ShapeMismatchError
from stratagem._src.core.tensor_shape import TensorShape
from stratagem._src.core.types import ArrayLike, DTypeLike
from stratagem._src.parameter_server.server.stored_array import Array
from stratagem._src.values.array_operators import array_of

__all__ = ["ShardInitializer"]


class ShardInitializer:
    """The initial value of a variable with an explicit shape and dtype, computed by a function.

    A function that takes ``partition_shape`` and ``partition_offset`` is called once per shard, in order,
    with the shape and offset of that shard, so at most one shard is in memory at a time. Any other
    function is called once, without arguments, and its value is split. The same happens if the function
    raises ``ValueError`` when called for a shard.

    Args:
        fn: The function.
        shape: The shape of the unsharded variable.
        dtype: Its dtype.

    Raises:
        ShapeMismatchError: If ``shape`` is not fully defined.

    >>> import numpy as np
    >>> def tens(partition_shape=(4, 2), partition_offset=(0, 0)):
    ...     return np.full(partition_shape, 10 * partition_offset[0])
    >>> initializer = ShardInitializer(tens, shape=(4, 2), dtype="int32")
    >>> initializer.shard_rows(0, 1), initializer.shard_rows(1, 2)
    (array([[0, 0]], dtype=int32), array([[10, 10]], dtype=int32))
    """

    def __init__(self, fn: Callable[..., Any], shape: Any, dtype: DTypeLike) -> None:
        wanted = TensorShape(shape)
        if not wanted.is_fully_defined():
            raise ShapeMismatchError(
                f"The shape of a variable must be fully defined, got {wanted}."
            )
        self.shape: tuple[int, ...] = tuple(size for size in wanted if size is not None)
        self.dtype: np.dtype[Any] = jax.dtypes.canonicalize_dtype(dtype)
        self._fn = fn

    def __call__(self) -> Array:
        """Returns all rows."""
        return self._full_value

    def shard_rows(self, start: int, stop: int) -> Array:
        """Returns the rows from ``start`` to ``stop``.

        Raises:
            ShapeMismatchError: If the function returns another shape.
        """
        if (start, stop) != (0, self.shape[0]) and _takes_partition_args(self._fn):
            shape = (stop - start, *self.shape[1:])
            offset = (start, *[0] * (len(self.shape) - 1))
            try:
                given = self._fn(partition_shape=shape, partition_offset=offset)
            except ValueError:
                return self._full_value[start:stop]
            value = self._array(given)
            return value if value.shape == shape else self._checked(value)[start:stop]
        return self._full_value[start:stop]

    @functools.cached_property
    def _full_value(self) -> Array:
        return self._checked(self._array(self._fn()))

    def _array(self, value: ArrayLike) -> Array:
        return np.asarray(array_of(value)).astype(self.dtype, copy=False)

    def _checked(self, value: Array) -> Array:
        if value.shape != self.shape:
            raise ShapeMismatchError(
                f"The initial value's function must return the variable's shape, {self.shape}, got "
                f"{value.shape}."
            )
        return value


def _takes_partition_args(fn: Callable[..., Any]) -> bool:
    try:
        inspect.signature(fn).bind(partition_shape=(), partition_offset=())
    except (TypeError, ValueError):  # other parameters, or no introspectable signature
        return False
    return True
