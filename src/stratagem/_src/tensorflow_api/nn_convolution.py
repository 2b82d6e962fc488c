"""``tf.nn``: convolutions along one, two and three dimensions, and transposed convolutions."""

from __future__ import annotations

from collections.abc import Sequence

import jax

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import (
    ArrayLike,
    ShapeLike,
    Tensor,
)
from stratagem._src.tensorflow_api.conversion import (
    as_tensor,
    integers,
    matched,
)
from stratagem._src.tensorflow_api.nn_windows import LAYOUTS, spatial_padding, spatial_sizes

__all__ = [
    "conv1d",
    "conv2d",
    "conv2d_transpose",
    "conv3d",
    "convolution",
    "depthwise_conv2d",
    "separable_conv2d",
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
    """Convolves along one dimension.

    Args:
        input: An array of batch, width and channels.
        filters: An array of width, input channels and output channels.
        stride: The step of the filter.
        padding: ``"SAME"``, ``"VALID"``, or pairs of paddings before and after each dimension.
        data_format: ``"NWC"`` or ``"NCW"``.
        dilations: The spacing of the filter's elements.
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
    """Convolves along two dimensions.

    Args:
        input: An array of batch, height, width and channels.
        filters: An array of height, width, input channels (of each group) and output channels.
        strides: The steps of the filter: one number, two, or one for each of four dimensions.
        padding: ``"SAME"``, ``"VALID"``, or pairs of paddings before and after each dimension.
        data_format: ``"NHWC"`` or ``"NCHW"``.
        dilations: The spacing of the filter's elements, in the form of ``strides``.
        name: Ignored.

    JAX equivalent: ``jax.lax.conv_general_dilated``.

    >>> import numpy as np
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
    """Convolves along three dimensions; the arguments are like those of ``conv2d``.

    >>> import numpy as np
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
    """Convolves along all spatial dimensions of the filter.

    >>> import numpy as np
    >>> convolution(np.ones((1, 3, 3, 1), "float32"), np.ones((2, 2, 1, 1), "float32")).shape
    (1, 2, 2, 1)
    """
    count = as_tensor(filters).ndim - 2
    layout = data_format or LAYOUTS[count]
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
    """Convolves each channel with its own filters (depthwise convolution).

    Args:
        input: An array of batch, height, width and channels.
        filter: An array of height, width, channels and filters per channel.
        strides: One number for each of four dimensions.
        padding: ``"SAME"``, ``"VALID"``, or pairs of paddings before and after each dimension.
        data_format: ``"NHWC"`` or ``"NCHW"``.
        dilations: The spacing of the filter's elements along height and width.
        name: Ignored.

    >>> import numpy as np
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
    """Applies a depthwise convolution, followed by a pointwise (1 x 1) convolution.

    >>> import numpy as np
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
    """Applies the transpose (the gradient with respect to the input) of ``conv2d``.

    Args:
        input: An array of batch, height, width and channels.
        filters: An array of height, width, output channels and input channels.
        output_shape: The shape of the result.
        strides: One number, two, or one for each of four dimensions.
        padding: ``"SAME"`` or ``"VALID"``.
        data_format: ``"NHWC"`` or ``"NCHW"``.
        dilations: The spacing of the filter's elements.
        name: Ignored.

    >>> import numpy as np
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


_FILTER_LAYOUTS = {1: "WIO", 2: "HWIO", 3: "DHWIO"}


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
    if sorted(layout) != sorted(LAYOUTS[count]):
        raise ValueError(f"data_format of tf.{op} must be like {LAYOUTS[count]!r}, got {layout!r}.")
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
            f"Channels of tf.{op} must be a multiple of the filter's input channels, got {channels} and "
            f"{taken}."
        )
    result = jax.lax.conv_general_dilated(
        x,
        kernel,
        spatial_sizes(op, "strides", strides, count, layout),
        spatial_padding(op, padding, count, layout),
        rhs_dilation=spatial_sizes(op, "dilations", dilations or 1, count, layout),
        dimension_numbers=(layout, _FILTER_LAYOUTS[count], layout),
        feature_group_count=channels // taken,
    )
    return result.reshape((*batch, *result.shape[1:]))
