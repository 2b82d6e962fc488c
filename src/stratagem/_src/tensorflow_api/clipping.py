"""Clips arrays by value or by norm."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from stratagem._src.core.indexed_slices import IndexedSlices
from stratagem._src.core.types import ArrayLike, AxisLike, ScalarLike, Tensor
from stratagem._src.tensorflow_api.conversion import as_tensor, axes_of, floats, matched

__all__ = [
    "clip_by_global_norm",
    "clip_by_norm",
    "clip_by_value",
    "global_norm",
]


def clip_by_value(
    t: ArrayLike, clip_value_min: ArrayLike, clip_value_max: ArrayLike, name: str | None = None
) -> Tensor:
    """Returns the elements, clipped to ``[clip_value_min, clip_value_max]``.

    JAX equivalent: ``jax.numpy.clip``.

    >>> clip_by_value([1.0, 5.0], 2, 4)
    Array([2., 4.], dtype=float32)
    """
    if isinstance(t, IndexedSlices):
        return IndexedSlices(
            clip_by_value(t.values, clip_value_min, clip_value_max), t.indices, t.dense_shape
        )
    x = as_tensor(t)
    low = matched("clip_by_value", x, clip_value_min)[1]
    high = matched("clip_by_value", x, clip_value_max)[1]
    # As in TensorFlow, the gradient passes through elements that equal a limit.
    below, above = x < low, x > high
    return jnp.where(above, high, jnp.where(below, low, x))


def clip_by_norm(
    t: ArrayLike, clip_norm: ScalarLike, axes: AxisLike = None, name: str | None = None
) -> Tensor:
    """Returns the array, scaled down if its Euclidean norm exceeds ``clip_norm``.

    Args:
        t: An array, or ``IndexedSlices``.
        clip_norm: The maximum norm, above 0.
        axes: The axes of the norm; default: all.
        name: Ignored.

    >>> clip_by_norm([3.0, 4.0], 1.0)
    Array([0.6, 0.8], dtype=float32)
    """
    values = floats("clip_by_norm", t.values if isinstance(t, IndexedSlices) else t)
    limit = matched("clip_by_norm", values, clip_norm)[1]
    along = axes_of("clip_by_norm", axes, values.ndim)
    squares = jnp.sum(values * values, along, keepdims=True)
    # The gradient of a square root at 0 is infinite.
    positive = squares > 0
    norm = jnp.where(positive, jnp.sqrt(jnp.where(positive, squares, 1)), squares)
    clipped = values * limit / jnp.maximum(norm, limit)
    return (
        IndexedSlices(clipped, t.indices, t.dense_shape)
        if isinstance(t, IndexedSlices)
        else clipped
    )


def global_norm(t_list: Sequence[ArrayLike], name: str | None = None) -> jax.Array:
    """Returns the global Euclidean norm of a list of arrays, without ``None``.

    >>> global_norm([[3.0], [4.0], None])
    Array(5., dtype=float32)
    """
    arrays = [
        as_tensor(t.values if isinstance(t, IndexedSlices) else t)
        for t in _listed(t_list)
        if t is not None
    ]
    if not arrays:
        raise ValueError("global_norm needs at least one array, got only None.")
    squares = [jnp.sum(jnp.square(jnp.abs(array))) for array in arrays]
    return jnp.sqrt(sum(squares[1:], squares[0]))


def clip_by_global_norm(
    t_list: Sequence[ArrayLike],
    clip_norm: ScalarLike,
    use_norm: ScalarLike = None,
    name: str | None = None,
) -> tuple[list[Tensor], Tensor]:
    """Returns arrays scaled down to a global norm of at most ``clip_norm``, and their global norm.

    Args:
        t_list: Arrays, ``IndexedSlices``, or ``None``, which stays ``None``.
        clip_norm: The maximum norm, above 0.
        use_norm: The global norm, if it is already computed.
        name: Ignored.

    JAX equivalent: ``optax.clip_by_global_norm``.

    >>> clip_by_global_norm([[3.0], None, [4.0]], 1.0)
    ([Array([0.6], dtype=float32), None, Array([0.8], dtype=float32)], Array(5., dtype=float32))
    """
    norm = global_norm(t_list) if use_norm is None else as_tensor(use_norm)
    limit = matched("clip_by_global_norm", norm, clip_norm)[1]
    # As in TensorFlow, an infinite or NaN norm makes all arrays NaN, so that the error is visible.
    scale = limit * jnp.minimum(1 / norm, 1 / limit) + (norm - norm)
    return [None if t is None else _scaled(t, scale) for t in _listed(t_list)], norm


def _listed(t_list: Sequence[ArrayLike]) -> Sequence[ArrayLike]:
    if isinstance(t_list, (str, bytes)) or not isinstance(t_list, Sequence):
        raise TypeError(f"Expected a list of arrays, got {type(t_list).__name__}.")
    return t_list


def _scaled(t: ArrayLike, scale: Tensor) -> Tensor:
    if isinstance(t, IndexedSlices):
        return IndexedSlices(_scaled(t.values, scale), t.indices, t.dense_shape)
    array = as_tensor(t)
    return array * scale.astype(array.dtype)
