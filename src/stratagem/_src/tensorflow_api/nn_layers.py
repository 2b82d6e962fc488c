"""``tf.nn``: convolutions, pooling, normalisation, embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import (
    ArrayLike,
    AxisLike,
    IntegerLike,
    ScalarLike,
    ShapeLike,
    StaticValue,
    Tensor,
)
from stratagem._src.tensorflow_api.array_indexing import gather
from stratagem._src.tensorflow_api.conversion import (
    axes_of,
    floats,
    integers,
    is_float,
    matched,
    numbers,
    tensor,
)

__all__ = [
    "avg_pool",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "batch_normalization",
    "bias_add",
    "conv1d",
    "conv2d",
    "conv2d_transpose",
    "conv3d",
    "convolution",
    "depth_to_space",
    "depthwise_conv2d",
    "embedding_lookup",
    "max_pool",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "moments",
    "separable_conv2d",
    "space_to_depth",
]


def conv1d(
    input: ArrayLike,
    filters: ArrayLike,
    stride: ShapeLike,
    padding: str | Sequence[Sequence[int]],
    data_format: str | None = "NWC",
    dilations: ShapeLike = None,
    name: str | None = None,
) -> jax.Array:
    """Returns a convolution along one dimension.

    Args:
        input: Array of batch, width and channels.
        filters: Array of width, channels in and channels out.
        stride: How far the filter moves.
        padding: ``"SAME"``, ``"VALID"``, or a list of paddings before and after for each dimension.
        data_format: ``"NWC"`` or ``"NCW"``.
        dilations: Distance of the filter's elements.
        name: Ignored.

    >>> conv1d([[[1.0], [2.0], [3.0]]], [[[1.0]], [[1.0]]], 1, "VALID").ravel()
    Array([3., 5.], dtype=float32)
    """
    return _convolution(
        "nn.conv1d", 1, input, filters, stride, padding, data_format or "NWC", dilations
    )


def conv2d(
    input: ArrayLike,
    filters: ArrayLike,
    strides: ShapeLike,
    padding: str | Sequence[Sequence[int]],
    data_format: str | None = "NHWC",
    dilations: ShapeLike = None,
    name: str | None = None,
) -> jax.Array:
    """Returns a convolution along two dimensions.

    Args:
        input: Array of batch, height, width and channels.
        filters: Array of height, width, channels in (of each group) and channels out.
        strides: How far the filter moves: one number, two, or one for each of four dimensions.
        padding: ``"SAME"``, ``"VALID"``, or a list of paddings before and after for each dimension.
        data_format: ``"NHWC"`` or ``"NCHW"``.
        dilations: Distance of the filter's elements, like ``strides``.
        name: Ignored.

    JAX equivalent: ``jax.lax.conv_general_dilated``.

    >>> conv2d(np.ones((1, 3, 3, 1), "float32"), np.ones((2, 2, 1, 1), "float32"), 1, "VALID").shape
    (1, 2, 2, 1)
    """
    return _convolution(
        "nn.conv2d", 2, input, filters, strides, padding, data_format or "NHWC", dilations
    )


def conv3d(
    input: ArrayLike,
    filters: ArrayLike,
    strides: ShapeLike,
    padding: str | Sequence[Sequence[int]],
    data_format: str | None = "NDHWC",
    dilations: ShapeLike = None,
    name: str | None = None,
) -> jax.Array:
    """Returns a convolution along three dimensions; arguments are like those of ``conv2d``.

    >>> x = np.ones((1, 3, 3, 3, 1), "float32")
    >>> conv3d(x, np.ones((2, 2, 2, 1, 1), "float32"), [1] * 5, "VALID").shape
    (1, 2, 2, 2, 1)
    """
    return _convolution(
        "nn.conv3d", 3, input, filters, strides, padding, data_format or "NDHWC", dilations
    )


def convolution(
    input: ArrayLike,
    filters: ArrayLike,
    strides: ShapeLike = None,
    padding: str = "VALID",
    data_format: str | None = None,
    dilations: ShapeLike = None,
    name: str | None = None,
) -> jax.Array:
    """Returns a convolution along as many dimensions as the filter has besides channels.

    >>> convolution(np.ones((1, 3, 3, 1), "float32"), np.ones((2, 2, 1, 1), "float32")).shape
    (1, 2, 2, 1)
    """
    count = tensor(filters).ndim - 2
    layout = data_format or _LAYOUTS[count]
    return _convolution(
        "nn.convolution", count, input, filters, strides or 1, padding, layout, dilations
    )


def depthwise_conv2d(
    input: ArrayLike,
    filter: ArrayLike,
    strides: ShapeLike,
    padding: str | Sequence[Sequence[int]],
    data_format: str | None = None,
    dilations: ShapeLike = None,
    name: str | None = None,
) -> jax.Array:
    """Returns a convolution in which each channel has filters of its own.

    Args:
        input: Array of batch, height, width and channels.
        filter: Array of height, width, channels and filters for each channel.
        strides: One number for each of four dimensions.
        padding: ``"SAME"``, ``"VALID"``, or a list of paddings before and after for each dimension.
        data_format: ``"NHWC"`` or ``"NCHW"``.
        dilations: Distance of the filter's elements along height and width.
        name: Ignored.

    >>> x = np.ones((1, 3, 3, 2), "float32")
    >>> depthwise_conv2d(x, np.ones((2, 2, 2, 3), "float32"), [1] * 4, "SAME").shape
    (1, 3, 3, 6)
    """
    x, kernel = matched("nn.depthwise_conv2d", input, filter)
    height, width, channels, times = kernel.shape
    kernel = kernel.reshape(height, width, 1, channels * times)
    return _convolution(
        "nn.depthwise_conv2d", 2, x, kernel, strides, padding, data_format or "NHWC", dilations
    )


def separable_conv2d(
    input: ArrayLike,
    depthwise_filter: ArrayLike,
    pointwise_filter: ArrayLike,
    strides: ShapeLike,
    padding: str | Sequence[Sequence[int]],
    data_format: str | None = None,
    dilations: ShapeLike = None,
    name: str | None = None,
) -> jax.Array:
    """Returns a depthwise convolution, followed by a convolution of single pixels.

    >>> x = np.ones((1, 3, 3, 2), "float32")
    >>> depthwise, pointwise = np.ones((2, 2, 2, 1), "float32"), np.ones((1, 1, 2, 3), "float32")
    >>> separable_conv2d(x, depthwise, pointwise, [1] * 4, "SAME").shape
    (1, 3, 3, 3)
    """
    inner = depthwise_conv2d(input, depthwise_filter, strides, padding, data_format, dilations)
    return conv2d(inner, pointwise_filter, 1, "VALID", data_format or "NHWC")


def conv2d_transpose(
    input: ArrayLike,
    filters: ArrayLike,
    output_shape: ShapeLike,
    strides: ShapeLike,
    padding: str = "SAME",
    data_format: str = "NHWC",
    dilations: ShapeLike = None,
    name: str | None = None,
) -> jax.Array:
    """Returns the transpose, or gradient, of ``conv2d`` with respect to its input.

    Args:
        input: Array of batch, height, width and channels.
        filters: Array of height, width, channels out and channels in.
        output_shape: Shape of the result.
        strides: One number, two, or one for each of four dimensions.
        padding: ``"SAME"`` or ``"VALID"``.
        data_format: ``"NHWC"`` or ``"NCHW"``.
        dilations: Distance of the filter's elements.
        name: Ignored.

    >>> x = np.ones((1, 2, 2, 1), "float32")
    >>> conv2d_transpose(x, np.ones((3, 3, 1, 1), "float32"), [1, 4, 4, 1], 2).shape
    (1, 4, 4, 1)
    """
    x, kernel = matched("nn.conv2d_transpose", input, filters)
    shape = integers("nn.conv2d_transpose", "output_shape", output_shape)

    def forward(image: ArrayLike) -> Tensor:
        return _convolution(
            "nn.conv2d_transpose", 2, image, kernel, strides, padding, data_format, dilations
        )

    [result] = jax.linear_transpose(forward, jax.ShapeDtypeStruct(shape, x.dtype))(x)
    return result


def max_pool(
    input: ArrayLike,
    ksize: ShapeLike,
    strides: ShapeLike,
    padding: str | Sequence[Sequence[int]],
    data_format: str | None = None,
    name: str | None = None,
) -> jax.Array:
    """Returns the largest elements in windows along one, two or three dimensions.

    Args:
        input: Array of batch, one to three dimensions, and channels.
        ksize: Size of a window: one number, one for each dimension, or also for batch and channels.
        strides: How far windows move, likewise.
        padding: ``"SAME"``, ``"VALID"``, or a list of paddings before and after for each dimension.
        data_format: Such as ``"NHWC"`` or ``"NCHW"``.
        name: Ignored.

    >>> max_pool(np.ones((1, 4, 4, 1), "float32"), 2, 2, "VALID").shape
    (1, 2, 2, 1)
    """
    return _pooled(
        "nn.max_pool", "max", tensor(input).ndim - 2, input, ksize, strides, padding, data_format
    )


def max_pool1d(
    input: ArrayLike,
    ksize: ShapeLike,
    strides: ShapeLike,
    padding: str | Sequence[Sequence[int]],
    data_format: str = "NWC",
    name: str | None = None,
) -> jax.Array:
    """Returns the largest elements in windows along one dimension.

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
    """Returns the largest elements in windows along two dimensions.

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
    """Returns the largest elements in windows along three dimensions.

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
    """Returns the means of windows along one, two or three dimensions; padding does not count.

    >>> avg_pool(np.ones((1, 4, 4, 1), "float32"), 2, 2, "VALID").shape
    (1, 2, 2, 1)
    """
    return _pooled(
        "nn.avg_pool", "mean", tensor(input).ndim - 2, input, ksize, strides, padding, data_format
    )


def avg_pool1d(
    input: ArrayLike,
    ksize: ShapeLike,
    strides: ShapeLike,
    padding: str | Sequence[Sequence[int]],
    data_format: str = "NWC",
    name: str | None = None,
) -> jax.Array:
    """Returns the means of windows along one dimension; padding does not count.

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
    """Returns the means of windows along two dimensions; padding does not count.

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
    """Returns the means of windows along three dimensions; padding does not count.

    >>> avg_pool3d(np.ones((1, 4, 4, 4, 1), "float32"), 2, 2, "VALID").shape
    (1, 2, 2, 2, 1)
    """
    return _pooled("nn.avg_pool3d", "mean", 3, input, ksize, strides, padding, data_format)


def bias_add(
    value: ArrayLike, bias: ArrayLike, data_format: str | None = None, name: str | None = None
) -> jax.Array:
    """Returns the array plus a vector along its channels: the last dimension, or the second of ``NC``.

    >>> bias_add([[1.0, 2.0]], [10.0, 20.0])
    Array([[11., 22.]], dtype=float32)
    """
    x, b = matched("nn.bias_add", value, bias)
    if data_format is not None and data_format.startswith("NC"):
        b = b.reshape((1, -1) + (1,) * (x.ndim - 2))
    elif x.shape[-1:] != b.shape:
        raise InvalidArgumentError(
            f"bias of tf.nn.bias_add must have shape {x.shape[-1:]}, got {b.shape}."
        )
    return x + b


def batch_normalization(
    x: ArrayLike,
    mean: ArrayLike,
    variance: ArrayLike,
    offset: ArrayLike,
    scale: ArrayLike,
    variance_epsilon: ScalarLike,
    name: str | None = None,
) -> jax.Array:
    """Returns ``(x - mean) / sqrt(variance + variance_epsilon) * scale + offset``.

    >>> batch_normalization([2.0], 1.0, 1.0, None, None, 0.0)
    Array([1.], dtype=float32)
    """
    array = floats("nn.batch_normalization", x)
    factor = jax.lax.rsqrt(tensor(variance) + variance_epsilon)
    if scale is not None:
        factor = factor * tensor(scale)
    shift = -tensor(mean) * factor if offset is None else tensor(offset) - tensor(mean) * factor
    return array * factor.astype(array.dtype) + shift.astype(array.dtype)


def moments(
    x: ArrayLike,
    axes: AxisLike,
    shift: object = None,
    keepdims: bool = False,
    name: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Returns mean and variance along axes; those of ``float16`` are computed in ``float32``.

    >>> moments([1.0, 3.0], [0])
    (Array(2., dtype=float32), Array(1., dtype=float32))
    """
    array = numbers("nn.moments", x)
    along = axes_of("nn.moments", axes, array.ndim)
    wide = array.astype(jnp.float32) if array.dtype in (jnp.float16, jnp.bfloat16) else array
    if not is_float(array.dtype):
        raise InvalidArgumentError(
            f"tf.nn.moments needs floats, got {array.dtype.name}. Use tf.cast."
        )
    mean = jnp.mean(wide, along, keepdims=True)
    variance = jnp.mean(jnp.square(wide - jax.lax.stop_gradient(mean)), along, keepdims=True)
    if not keepdims:
        mean, variance = jnp.squeeze(mean, along), jnp.squeeze(variance, along)
    return mean.astype(array.dtype), variance.astype(array.dtype)


def embedding_lookup(
    params: ArrayLike, ids: ArrayLike, max_norm: ScalarLike = None, name: str | None = None
) -> jax.Array:
    """Returns the rows of a table with these numbers; of a variable on parameter servers only those move.

    Args:
        params: An array or a variable.
        ids: Whole numbers of at least 0.
        max_norm: Largest Euclidean norm of a row; longer ones are scaled down.
        name: Ignored.

    >>> embedding_lookup([[1.0], [2.0]], [1, 0, 1])
    Array([[2.],
           [1.],
           [2.]], dtype=float32)
    """
    if isinstance(params, (list, tuple)) and len(params) == 1:
        params = params[0]
    rows = gather(params, ids)
    if max_norm is None:
        return rows
    axes = tuple(range(tensor(ids).ndim, rows.ndim))
    size = jnp.sqrt(jnp.sum(rows * rows, axes, keepdims=True))
    return rows * max_norm / jnp.maximum(size, max_norm)


def space_to_depth(
    input: ArrayLike, block_size: IntegerLike, data_format: str = "NHWC", name: str | None = None
) -> jax.Array:
    """Returns an array whose blocks in space have become channels.

    >>> space_to_depth(np.ones((1, 4, 4, 1), "float32"), 2).shape
    (1, 2, 2, 4)
    """
    x, block = tensor(input), int(block_size)
    if data_format != "NHWC":
        raise NotImplementedError(
            f"data_format must be 'NHWC', got {data_format!r}. Use tf.transpose."
        )
    n, h, w, c = x.shape
    x = x.reshape(n, h // block, block, w // block, block, c).transpose(0, 1, 3, 2, 4, 5)
    return x.reshape(n, h // block, w // block, block * block * c)


def depth_to_space(
    input: ArrayLike, block_size: IntegerLike, data_format: str = "NHWC", name: str | None = None
) -> jax.Array:
    """Returns an array whose channels have become blocks in space.

    >>> depth_to_space(np.ones((1, 2, 2, 4), "float32"), 2).shape
    (1, 4, 4, 1)
    """
    x, block = tensor(input), int(block_size)
    if data_format != "NHWC":
        raise NotImplementedError(
            f"data_format must be 'NHWC', got {data_format!r}. Use tf.transpose."
        )
    n, h, w, c = x.shape
    x = x.reshape(n, h, w, block, block, c // block**2).transpose(0, 1, 3, 2, 4, 5)
    return x.reshape(n, h * block, w * block, c // block**2)


_LAYOUTS = {1: "NWC", 2: "NHWC", 3: "NDHWC"}
_FILTERS = {1: "WIO", 2: "HWIO", 3: "DHWIO"}


def _spatial(op: str, argument: str, value: ArrayLike, count: int, layout: str) -> tuple[int, ...]:
    """Returns one number for each dimension in space."""
    given = integers(op, argument, value)
    if len(given) == 1:
        return given * count
    if len(given) == count:
        return given
    if len(given) != count + 2:
        raise ValueError(
            f"{argument} of tf.{op} must have 1, {count} or {count + 2} numbers, got {value}."
        )
    channels = layout.index("C")
    if given[0] != 1 or given[channels] != 1:
        raise InvalidArgumentError(
            f"{argument} of tf.{op} must be 1 for batch and channels, got {value}."
        )
    return tuple(n for place, n in enumerate(given) if place not in (0, channels))


def _padding(op: str, padding: str | Sequence[Sequence[int]], count: int, layout: str) -> Any:
    if isinstance(padding, str):
        if padding.upper() not in ("SAME", "VALID"):
            raise ValueError(
                f"padding of tf.{op} must be 'SAME', 'VALID' or a list, got {padding!r}."
            )
        return padding.upper()
    pairs = [integers(op, "padding", pair) for pair in padding]
    if len(pairs) == count + 2:
        pairs = [pair for place, pair in enumerate(pairs) if place not in (0, layout.index("C"))]
    return pairs


def _convolution(
    op: str,
    count: int,
    value: ArrayLike,
    filters: ArrayLike,
    strides: ShapeLike,
    padding: str | Sequence[Sequence[int]],
    layout: str,
    dilations: ShapeLike,
) -> Tensor:
    x, kernel = matched(op, value, filters)
    if sorted(layout) != sorted(_LAYOUTS[count]):
        raise ValueError(
            f"data_format of tf.{op} must be like {_LAYOUTS[count]!r}, got {layout!r}."
        )
    if x.ndim != count + 2:
        batch = x.shape[: -count - 1]
        if x.ndim < count + 2:
            raise InvalidArgumentError(
                f"tf.{op} needs {count + 2} dimensions, got shape {x.shape}."
            )
        x = x.reshape((-1, *x.shape[-count - 1 :]))
    else:
        batch = x.shape[:1]
    channels, taken = x.shape[layout.index("C")], kernel.shape[-2]
    if not taken or channels % taken:
        raise InvalidArgumentError(
            f"channels of tf.{op} must be a multiple of what the filter takes, got {channels} and {taken}."
        )
    result = jax.lax.conv_general_dilated(
        x,
        kernel,
        _spatial(op, "strides", strides, count, layout),
        _padding(op, padding, count, layout),
        rhs_dilation=_spatial(op, "dilations", dilations or 1, count, layout),
        dimension_numbers=(layout, _FILTERS[count], layout),
        feature_group_count=channels // taken,
    )
    return result.reshape((*batch, *result.shape[1:]))


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
    layout = layout or _LAYOUTS.get(count, "")
    if x.ndim != len(layout) or not layout:
        raise InvalidArgumentError(
            f"tf.{op} needs an array like {layout or 'NHWC'}, got shape {x.shape}."
        )

    def spread(numbers_: Sequence[Any], other: StaticValue) -> list[Any]:
        rest = iter(numbers_)
        return [other if letter in "NC" else next(rest) for letter in layout]

    window = spread(_spatial(op, "ksize", ksize, count, layout), 1)
    step = spread(_spatial(op, "strides", strides, count, layout), 1)
    pads = _padding(op, padding, count, layout)
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
