"""``tf.nn``: maximum and average pooling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import (
    ArrayLike,
    ShapeLike,
    StaticValue,
    Tensor,
)
from stratagem._src.tensorflow_api.conversion import (
    as_tensor,
    is_float,
    numbers,
)
from stratagem._src.tensorflow_api.nn_windows import LAYOUTS, spatial_padding, spatial_sizes

__all__ = [
    "avg_pool",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "max_pool",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
]


def max_pool(
    input: ArrayLike,
    ksize: ShapeLike,
    strides: ShapeLike,
    padding: str | Sequence[Sequence[int]],
    data_format: str | None = None,
    name: str | None = None,
) -> jax.Array:
    """Returns the maximum of windows along one, two or three dimensions.

    Args:
        input: An array of batch, one to three spatial dimensions, and channels.
        ksize: The size of a window: one number, one per spatial dimension, or one per dimension.
        strides: The step between windows, in the form of ``ksize``.
        padding: ``"SAME"``, ``"VALID"``, or pairs of paddings before and after each dimension.
        data_format: For example ``"NHWC"`` or ``"NCHW"``.
        name: Ignored.

    >>> max_pool(np.ones((1, 4, 4, 1), "float32"), 2, 2, "VALID").shape
    (1, 2, 2, 1)
    """
    return _pooled(
        "nn.max_pool", "max", as_tensor(input).ndim - 2, input, ksize, strides, padding, data_format
    )


def max_pool1d(
    input: ArrayLike,
    ksize: ShapeLike,
    strides: ShapeLike,
    padding: str | Sequence[Sequence[int]],
    data_format: str = "NWC",
    name: str | None = None,
) -> jax.Array:
    """Returns the maximum of windows along one dimension.

    >>> max_pool1d(np.ones((1, 4, 1), "float32"), 2, 2, "VALID").shape
    (1, 2, 1)
    """
    return _pooled("nn.max_pool1d", "max", 1, input, ksize, strides, padding, data_format)


def max_pool2d(
    input: ArrayLike,
    ksize: ShapeLike,
    strides: ShapeLike,
    padding: str | Sequence[Sequence[int]],
    data_format: str = "NHWC",
    name: str | None = None,
) -> jax.Array:
    """Returns the maximum of windows along two dimensions.

    >>> max_pool2d(np.ones((1, 4, 4, 1), "float32"), 2, 2, "VALID").shape
    (1, 2, 2, 1)
    """
    return _pooled("nn.max_pool2d", "max", 2, input, ksize, strides, padding, data_format)


def max_pool3d(
    input: ArrayLike,
    ksize: ShapeLike,
    strides: ShapeLike,
    padding: str | Sequence[Sequence[int]],
    data_format: str = "NDHWC",
    name: str | None = None,
) -> jax.Array:
    """Returns the maximum of windows along three dimensions.

    >>> max_pool3d(np.ones((1, 4, 4, 4, 1), "float32"), 2, 2, "VALID").shape
    (1, 2, 2, 2, 1)
    """
    return _pooled("nn.max_pool3d", "max", 3, input, ksize, strides, padding, data_format)


def avg_pool(
    input: ArrayLike,
    ksize: ShapeLike,
    strides: ShapeLike,
    padding: str | Sequence[Sequence[int]],
    data_format: str | None = None,
    name: str | None = None,
) -> jax.Array:
    """Returns the mean of windows along one, two or three dimensions, without padding.

    >>> avg_pool(np.ones((1, 4, 4, 1), "float32"), 2, 2, "VALID").shape
    (1, 2, 2, 1)
    """
    return _pooled(
        "nn.avg_pool",
        "mean",
        as_tensor(input).ndim - 2,
        input,
        ksize,
        strides,
        padding,
        data_format,
    )


def avg_pool1d(
    input: ArrayLike,
    ksize: ShapeLike,
    strides: ShapeLike,
    padding: str | Sequence[Sequence[int]],
    data_format: str = "NWC",
    name: str | None = None,
) -> jax.Array:
    """Returns the mean of windows along one dimension, without padding.

    >>> avg_pool1d(np.ones((1, 4, 1), "float32"), 2, 2, "VALID").shape
    (1, 2, 1)
    """
    return _pooled("nn.avg_pool1d", "mean", 1, input, ksize, strides, padding, data_format)


def avg_pool2d(
    input: ArrayLike,
    ksize: ShapeLike,
    strides: ShapeLike,
    padding: str | Sequence[Sequence[int]],
    data_format: str = "NHWC",
    name: str | None = None,
) -> jax.Array:
    """Returns the mean of windows along two dimensions, without padding.

    >>> avg_pool2d(np.ones((1, 4, 4, 1), "float32"), 2, 2, "VALID").shape
    (1, 2, 2, 1)
    """
    return _pooled("nn.avg_pool2d", "mean", 2, input, ksize, strides, padding, data_format)


def avg_pool3d(
    input: ArrayLike,
    ksize: ShapeLike,
    strides: ShapeLike,
    padding: str | Sequence[Sequence[int]],
    data_format: str = "NDHWC",
    name: str | None = None,
) -> jax.Array:
    """Returns the mean of windows along three dimensions, without padding.

    >>> avg_pool3d(np.ones((1, 4, 4, 4, 1), "float32"), 2, 2, "VALID").shape
    (1, 2, 2, 2, 1)
    """
    return _pooled("nn.avg_pool3d", "mean", 3, input, ksize, strides, padding, data_format)


def _pooled(
    op: str,
    how: str,
    count: int,
    value: ArrayLike,
    ksize: ShapeLike,
    strides: ShapeLike,
    padding: str | Sequence[Sequence[int]],
    layout: str | None,
) -> Tensor:
    x = numbers(op, value)
    layout = layout or LAYOUTS.get(count, "")
    if x.ndim != len(layout) or not layout:
        raise InvalidArgumentError(
            f"tf.{op} needs an array like {layout or 'NHWC'}, got shape {x.shape}."
        )

    def spread(numbers_: Sequence[Any], other: StaticValue) -> list[Any]:
        rest = iter(numbers_)
        return [other if letter in "NC" else next(rest) for letter in layout]

    window = spread(spatial_sizes(op, "ksize", ksize, count, layout), 1)
    step = spread(spatial_sizes(op, "strides", strides, count, layout), 1)
    pads = spatial_padding(op, padding, count, layout)
    if not isinstance(pads, str):
        pads = spread(pads, (0, 0))
    if how == "max":
        lowest = -np.inf if is_float(x.dtype) else jnp.iinfo(x.dtype).min
        return jax.lax.reduce_window(
            x, np.asarray(lowest, x.dtype), jax.lax.max, window, step, pads
        )
    zero = np.asarray(0, x.dtype)
    total = jax.lax.reduce_window(x, zero, jax.lax.add, window, step, pads)
    sizes = jax.lax.reduce_window(jnp.ones_like(x), zero, jax.lax.add, window, step, pads)
    return total / sizes
