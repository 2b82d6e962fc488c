"""``tf.math``: sums, means and extremes over the segments of an array."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import ArrayLike, IntegerLike, Tensor
from stratagem._src.tensorflow_api.conversion import (
    as_tensor,
    concrete,
    integer,
    is_float,
)

__all__ = [
    "segment_max",
    "segment_mean",
    "segment_min",
    "segment_prod",
    "segment_sum",
    "unsorted_segment_max",
    "unsorted_segment_mean",
    "unsorted_segment_min",
    "unsorted_segment_prod",
    "unsorted_segment_sqrt_n",
    "unsorted_segment_sum",
]


def segment_sum(data: ArrayLike, segment_ids: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the sum of the rows of each segment; ``segment_ids`` are sorted and not traced.

    >>> segment_sum([1, 2, 3], [0, 0, 2])
    Array([3, 0, 3], dtype=int32)
    """
    return _segments("segment_sum", "sum", data, segment_ids)


def segment_mean(data: ArrayLike, segment_ids: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the mean of the rows of each segment; ``segment_ids`` are sorted and not traced.

    >>> segment_mean([1.0, 2.0, 3.0], [0, 0, 2])
    Array([1.5, 0. , 3. ], dtype=float32)
    """
    return _segments("segment_mean", "mean", data, segment_ids)


def segment_max(data: ArrayLike, segment_ids: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the elementwise maximum of the rows of each segment; 0 for an empty segment.

    >>> segment_max([1, 2, 3], [0, 0, 2])
    Array([2, 0, 3], dtype=int32)
    """
    return _segments("segment_max", "max", data, segment_ids)


def segment_min(data: ArrayLike, segment_ids: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the elementwise minimum of the rows of each segment; 0 for an empty segment.

    >>> segment_min([1, 2, 3], [0, 0, 2])
    Array([1, 0, 3], dtype=int32)
    """
    return _segments("segment_min", "min", data, segment_ids)


def segment_prod(data: ArrayLike, segment_ids: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the product of the rows of each segment; 1 for an empty segment.

    >>> segment_prod([1, 2, 3], [0, 0, 2])
    Array([2, 1, 3], dtype=int32)
    """
    return _segments("segment_prod", "prod", data, segment_ids)


def unsorted_segment_sum(
    data: ArrayLike, segment_ids: ArrayLike, num_segments: IntegerLike, name: str | None = None
) -> jax.Array:
    """Returns the sum of the rows of each segment; rows with a negative segment id are dropped.

    JAX equivalent: ``jax.ops.segment_sum``.

    >>> unsorted_segment_sum([1, 2, 3], [1, 0, 1], 2)
    Array([2, 4], dtype=int32)
    """
    return _unsorted("unsorted_segment_sum", "sum", data, segment_ids, num_segments)


def unsorted_segment_mean(
    data: ArrayLike, segment_ids: ArrayLike, num_segments: IntegerLike, name: str | None = None
) -> jax.Array:
    """Returns the mean of the rows of each segment; 0 for an empty segment.

    >>> unsorted_segment_mean([1.0, 2.0, 3.0], [1, 0, 1], 2)
    Array([2., 2.], dtype=float32)
    """
    return _unsorted("unsorted_segment_mean", "mean", data, segment_ids, num_segments)


def unsorted_segment_max(
    data: ArrayLike, segment_ids: ArrayLike, num_segments: IntegerLike, name: str | None = None
) -> jax.Array:
    """Returns the elementwise maximum of the rows of each segment; the lowest number if it is empty.

    >>> unsorted_segment_max([1, 2, 3], [1, 0, 1], 2)
    Array([2, 3], dtype=int32)
    """
    return _unsorted("unsorted_segment_max", "max", data, segment_ids, num_segments)


def unsorted_segment_min(
    data: ArrayLike, segment_ids: ArrayLike, num_segments: IntegerLike, name: str | None = None
) -> jax.Array:
    """Returns the elementwise minimum of the rows of each segment; the highest number if it is empty.

    >>> unsorted_segment_min([1, 2, 3], [1, 0, 1], 2)
    Array([2, 1], dtype=int32)
    """
    return _unsorted("unsorted_segment_min", "min", data, segment_ids, num_segments)


def unsorted_segment_prod(
    data: ArrayLike, segment_ids: ArrayLike, num_segments: IntegerLike, name: str | None = None
) -> jax.Array:
    """Returns the product of the rows of each segment; 1 for an empty segment.

    >>> unsorted_segment_prod([1, 2, 3], [1, 0, 1], 2)
    Array([2, 3], dtype=int32)
    """
    return _unsorted("unsorted_segment_prod", "prod", data, segment_ids, num_segments)


def unsorted_segment_sqrt_n(
    data: ArrayLike, segment_ids: ArrayLike, num_segments: IntegerLike, name: str | None = None
) -> jax.Array:
    """Returns the sum of the rows of each segment, divided by the square root of their number.

    >>> unsorted_segment_sqrt_n([1.0, 2.0, 3.0, 4.0], [0, 0, 0, 0], 1)
    Array([5.], dtype=float32)
    """
    return _unsorted("unsorted_segment_sqrt_n", "sqrt_n", data, segment_ids, num_segments)


def _segments(op: str, how: str, data: ArrayLike, segment_ids: ArrayLike) -> Tensor:
    values = concrete(segment_ids)
    if values is None:
        raise InvalidArgumentError(
            f"tf.math.{op} needs segment_ids that are not traced: they decide the size of the result. Use "
            f"tf.math.unsorted_{op}, which takes num_segments."
        )
    if values.ndim != 1 or (values[1:] < values[:-1]).any() or (values < 0).any():
        raise InvalidArgumentError(
            f"segment_ids of tf.math.{op} must be a sorted vector of numbers >= 0."
        )
    count = int(values[-1]) + 1 if values.size else 0
    result = _unsorted(op, how, data, segment_ids, count)
    if how in ("max", "min"):
        empty = np.bincount(values, minlength=count) == 0
        result = jnp.where(empty.reshape((-1,) + (1,) * (result.ndim - 1)), 0, result)
        result = result.astype(as_tensor(data).dtype)
    return result


def _unsorted(
    op: str, how: str, data: ArrayLike, segment_ids: ArrayLike, num_segments: IntegerLike
) -> Tensor:
    rows, ids = as_tensor(data), as_tensor(segment_ids)
    if rows.shape[: ids.ndim] != ids.shape:
        raise InvalidArgumentError(
            f"segment_ids of tf.math.{op} must have data's leading shape, got {ids.shape} and {rows.shape}."
        )
    count = integer(f"math.{op}", "num_segments", num_segments)
    values = concrete(segment_ids)
    if values is not None and values.size and values.max() >= count:
        raise InvalidArgumentError(
            f"segment_ids of tf.math.{op} must be below num_segments, {count}, got {values.max()}."
        )
    ids = jnp.where(ids < 0, count, ids).ravel()
    rows = rows.reshape((ids.size, *rows.shape[as_tensor(segment_ids).ndim :]))
    shape = (count, *rows.shape[1:])
    if how in ("sum", "mean", "sqrt_n"):
        total = jnp.zeros(shape, rows.dtype).at[ids].add(rows, mode="drop")
        if how == "sum":
            return total
        sizes = jnp.zeros(count, rows.dtype).at[ids].add(1, mode="drop")
        sizes = jnp.maximum(sizes, 1).reshape((-1,) + (1,) * (rows.ndim - 1))
        if how == "sqrt_n":
            sizes = jnp.sqrt(sizes)
        return (
            total / sizes
            if is_float(rows.dtype)
            else jax.lax.div(*jnp.broadcast_arrays(total, sizes))
        )
    if how == "prod":
        return jnp.ones(shape, rows.dtype).at[ids].multiply(rows, mode="drop")
    limits: Any = jnp.finfo(rows.dtype) if is_float(rows.dtype) else jnp.iinfo(rows.dtype)
    start = jnp.full(shape, limits.min if how == "max" else limits.max, rows.dtype)
    return getattr(start.at[ids], how)(rows, mode="drop")
