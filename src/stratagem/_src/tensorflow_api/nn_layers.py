"""``tf.nn``: bias, batch normalization, moments, embeddings, and space-to-depth."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import (
    ArrayLike,
    AxisLike,
    IntegerLike,
    ScalarLike,
    Tensor,
)
from stratagem._src.tensorflow_api.array_indexing import gather
from stratagem._src.tensorflow_api.conversion import (
    as_tensor,
    axes_of,
    floats,
    is_float,
    matched,
    numbers,
)

__all__ = [
    "batch_normalization",
    "bias_add",
    "depth_to_space",
    "embedding_lookup",
    "moments",
    "space_to_depth",
]


def bias_add(
    value: ArrayLike, bias: ArrayLike, data_format: str | None = None, name: str | None = None
) -> jax.Array:
    """Adds a vector along the channels: the last dimension, or the second for ``data_format="NC..."``.

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
    factor = jax.lax.rsqrt(as_tensor(variance) + variance_epsilon)
    if scale is not None:
        factor = factor * as_tensor(scale)
    shift = (
        -as_tensor(mean) * factor
        if offset is None
        else as_tensor(offset) - as_tensor(mean) * factor
    )
    return array * factor.astype(array.dtype) + shift.astype(array.dtype)


def moments(
    x: ArrayLike,
    axes: AxisLike,
    shift: object = None,
    keepdims: bool = False,
    name: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Returns the mean and variance along axes; 16-bit floats are computed in ``float32``.

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
    """Returns the rows of a table at ``ids``. Parameter servers send only those rows.

    Args:
        params: An array or a variable.
        ids: Integers >= 0.
        max_norm: The maximum Euclidean norm of a row; longer rows are scaled down.
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
    axes = tuple(range(as_tensor(ids).ndim, rows.ndim))
    size = jnp.sqrt(jnp.sum(rows * rows, axes, keepdims=True))
    return rows * max_norm / jnp.maximum(size, max_norm)


def space_to_depth(
    input: ArrayLike, block_size: IntegerLike, data_format: str = "NHWC", name: str | None = None
) -> jax.Array:
    """Moves spatial blocks into channels.

    >>> import numpy as np
    >>> space_to_depth(np.ones((1, 4, 4, 1), "float32"), 2).shape
    (1, 2, 2, 4)
    """
    x, block = as_tensor(input), int(block_size)
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
    """Moves channels into spatial blocks.

    >>> import numpy as np
    >>> depth_to_space(np.ones((1, 2, 2, 4), "float32"), 2).shape
    (1, 4, 4, 1)
    """
    x, block = as_tensor(input), int(block_size)
    if data_format != "NHWC":
        raise NotImplementedError(
            f"data_format must be 'NHWC', got {data_format!r}. Use tf.transpose."
        )
    n, h, w, c = x.shape
    x = x.reshape(n, h, w, block, block, c // block**2).transpose(0, 1, 3, 2, 4, 5)
    return x.reshape(n, h * block, w * block, c // block**2)
