"""``tf.math``: reductions, cumulative reductions, argmax, and counts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import (
    ArrayLike,
    AxisLike,
    DTypeLike,
    IntegerLike,
    ScalarLike,
    Tensor,
)
from stratagem._src.tensorflow_api.conversion import (
    as_dtype,
    as_tensor,
    axes_of,
    canonical_dtype,
    concrete,
    floats,
    integer,
    is_complex,
    is_float,
    numbers,
)
from stratagem._src.tensorflow_api.host_tensor import HostTensor, is_size, is_symbolic

__all__ = [
    "argmax",
    "argmin",
    "bincount",
    "confusion_matrix",
    "count_nonzero",
    "cumprod",
    "cumsum",
    "cumulative_logsumexp",
    "is_non_decreasing",
    "is_strictly_increasing",
    "reduce_all",
    "reduce_any",
    "reduce_euclidean_norm",
    "reduce_logsumexp",
    "reduce_max",
    "reduce_mean",
    "reduce_min",
    "reduce_prod",
    "reduce_std",
    "reduce_sum",
    "reduce_variance",
    "zero_fraction",
]


def reduce_sum(
    input_tensor: ArrayLike, axis: AxisLike = None, keepdims: bool = False, name: str | None = None
) -> jax.Array:
    """Returns the sum of elements along axes, or of all elements for ``None``; the dtype is unchanged.

    >>> reduce_sum([[1, 2], [3, 4]], axis=0)
    Array([4, 6], dtype=int32)
    """
    x = numbers("reduce_sum", input_tensor)
    return jnp.sum(x, axes_of("reduce_sum", axis, x.ndim), dtype=x.dtype, keepdims=bool(keepdims))


def reduce_mean(
    input_tensor: ArrayLike, axis: AxisLike = None, keepdims: bool = False, name: str | None = None
) -> jax.Array:
    """Returns the mean of elements along axes. The mean of integers is rounded towards 0.

    >>> reduce_mean([[1.0, 2.0], [3.0, 6.0]], axis=1)
    Array([1.5, 4.5], dtype=float32)
    >>> reduce_mean([1, 2])
    Array(1, dtype=int32)
    """
    x = numbers("reduce_mean", input_tensor)
    axes = axes_of("reduce_mean", axis, x.ndim)
    if is_float(x.dtype) or is_complex(x.dtype):
        return jnp.mean(x, axes, keepdims=bool(keepdims))
    count = math.prod(x.shape[one] for one in axes)
    if not is_symbolic(count) and count == 0:
        return jnp.zeros_like(jnp.sum(x, axes, dtype=x.dtype, keepdims=bool(keepdims)))
    wide = x.dtype if x.dtype.itemsize >= 4 else jnp.int32
    total = jnp.sum(x, axes, dtype=wide, keepdims=bool(keepdims))
    return jax.lax.div(total, jnp.full_like(total, jnp.asarray(count))).astype(x.dtype)


def reduce_max(
    input_tensor: ArrayLike, axis: AxisLike = None, keepdims: bool = False, name: str | None = None
) -> jax.Array:
    """Returns the maximum along axes; the lowest number of the dtype if there are no elements.

    >>> reduce_max([[1, 5], [3, 4]], axis=1)
    Array([5, 4], dtype=int32)
    """
    return _extreme("reduce_max", jnp.max, input_tensor, axis, keepdims)


def reduce_min(
    input_tensor: ArrayLike, axis: AxisLike = None, keepdims: bool = False, name: str | None = None
) -> jax.Array:
    """Returns the minimum along axes; the highest number of the dtype if there are no elements.

    >>> reduce_min([[1, 5], [3, 4]], axis=1)
    Array([1, 3], dtype=int32)
    """
    return _extreme("reduce_min", jnp.min, input_tensor, axis, keepdims)


def reduce_prod(
    input_tensor: ArrayLike, axis: AxisLike = None, keepdims: bool = False, name: str | None = None
) -> Tensor:
    """Returns the product of elements along axes.

    >>> reduce_prod([[1, 2], [3, 4]])
    Array(24, dtype=int32)
    """
    if is_size(input_tensor):
        axes = axes_of("reduce_prod", axis, input_tensor.ndim)
        product = np.prod(input_tensor, axes, input_tensor.dtype, keepdims=bool(keepdims))
        return HostTensor.of(product)
    x = numbers("reduce_prod", input_tensor)
    return jnp.prod(x, axes_of("reduce_prod", axis, x.ndim), dtype=x.dtype, keepdims=bool(keepdims))


def reduce_all(
    input_tensor: ArrayLike, axis: AxisLike = None, keepdims: bool = False, name: str | None = None
) -> jax.Array:
    """Returns whether all booleans along axes are true.

    >>> reduce_all([[True, True], [True, False]], axis=1)
    Array([ True, False], dtype=bool)
    """
    x = as_tensor(input_tensor, np.bool_)
    return jnp.all(x, axes_of("reduce_all", axis, x.ndim), keepdims=bool(keepdims))


def reduce_any(
    input_tensor: ArrayLike, axis: AxisLike = None, keepdims: bool = False, name: str | None = None
) -> jax.Array:
    """Returns whether any boolean along axes is true.

    >>> reduce_any([[True, False], [False, False]], axis=1)
    Array([ True, False], dtype=bool)
    """
    x = as_tensor(input_tensor, np.bool_)
    return jnp.any(x, axes_of("reduce_any", axis, x.ndim), keepdims=bool(keepdims))


def reduce_logsumexp(
    input_tensor: ArrayLike, axis: AxisLike = None, keepdims: bool = False, name: str | None = None
) -> jax.Array:
    """Returns the logarithm of the sum of exponentials along axes.

    >>> reduce_logsumexp([0.0, 0.0])
    Array(0.6931472, dtype=float32)
    """
    x = floats("reduce_logsumexp", input_tensor)
    axes = axes_of("reduce_logsumexp", axis, x.ndim)
    return jax.nn.logsumexp(x, axes, keepdims=bool(keepdims))


def reduce_euclidean_norm(
    input_tensor: ArrayLike, axis: AxisLike = None, keepdims: bool = False, name: str | None = None
) -> jax.Array:
    """Returns the square root of the sum of squares along axes.

    >>> reduce_euclidean_norm([3.0, 4.0])
    Array(5., dtype=float32)
    """
    x = numbers("math.reduce_euclidean_norm", input_tensor)
    axes = axes_of("math.reduce_euclidean_norm", axis, x.ndim)
    squares = jnp.sum(jnp.square(jnp.abs(x)), axes, keepdims=bool(keepdims))
    return jnp.sqrt(squares).astype(x.dtype)


def reduce_variance(
    input_tensor: ArrayLike, axis: AxisLike = None, keepdims: bool = False, name: str | None = None
) -> jax.Array:
    """Returns the variance of elements along axes.

    >>> reduce_variance([1.0, 3.0])
    Array(1., dtype=float32)
    """
    x = _floats("math.reduce_variance", input_tensor)
    return jnp.var(x, axes_of("math.reduce_variance", axis, x.ndim), keepdims=bool(keepdims))


def reduce_std(
    input_tensor: ArrayLike, axis: AxisLike = None, keepdims: bool = False, name: str | None = None
) -> jax.Array:
    """Returns the standard deviation of elements along axes.

    >>> reduce_std([1.0, 3.0])
    Array(1., dtype=float32)
    """
    x = _floats("math.reduce_std", input_tensor)
    return jnp.std(x, axes_of("math.reduce_std", axis, x.ndim), keepdims=bool(keepdims))


def count_nonzero(
    input: ArrayLike,
    axis: AxisLike = None,
    keepdims: bool | None = None,
    dtype: DTypeLike = np.int64,
    name: str | None = None,
) -> jax.Array:
    """Returns the number of nonzero elements along axes.

    >>> count_nonzero([[0, 1], [2, 3]], axis=0)
    Array([1, 2], dtype=int32)
    """
    x = as_tensor(input)
    axes = axes_of("math.count_nonzero", axis, x.ndim)
    return jnp.sum(x != 0, axes, dtype=canonical_dtype(dtype), keepdims=bool(keepdims))


def zero_fraction(value: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the fraction of elements that are zero.

    >>> zero_fraction([0, 1, 2, 3])
    Array(0.25, dtype=float32)
    """
    return jnp.mean(as_tensor(value) == 0, dtype=jnp.float32)


def argmax(
    input: ArrayLike,
    axis: AxisLike = None,
    output_type: DTypeLike = np.int64,
    name: str | None = None,
) -> jax.Array:
    """Returns the index of the largest element along an axis, the first by default.

    Differs from TensorFlow: 64-bit indices have 32 bits in JAX's default mode.

    >>> argmax([[1, 5], [3, 4]], axis=1)
    Array([1, 1], dtype=int32)
    """
    return _index_of_extreme("argmax", jnp.argmax, input, axis, output_type)


def argmin(
    input: ArrayLike,
    axis: AxisLike = None,
    output_type: DTypeLike = np.int64,
    name: str | None = None,
) -> jax.Array:
    """Returns the index of the smallest element along an axis, the first by default.

    Differs from TensorFlow: 64-bit indices have 32 bits in JAX's default mode.

    >>> argmin([[1, 5], [3, 4]], axis=1)
    Array([0, 0], dtype=int32)
    """
    return _index_of_extreme("argmin", jnp.argmin, input, axis, output_type)


def cumsum(
    x: ArrayLike,
    axis: AxisLike = 0,
    exclusive: bool = False,
    reverse: bool = False,
    name: str | None = None,
) -> jax.Array:
    """Returns the cumulative sum along an axis.

    Args:
        x: An array.
        axis: The axis.
        exclusive: Whether each sum excludes the element itself.
        reverse: Whether to start at the end.
        name: Ignored.

    >>> cumsum([1, 2, 3], exclusive=True)
    Array([0, 1, 3], dtype=int32)
    """
    x = numbers("cumsum", x)
    return _cumulative(
        "cumsum", lambda y, a: jnp.cumsum(y, a, dtype=y.dtype), 0, x, axis, exclusive, reverse
    )


def cumprod(
    x: ArrayLike,
    axis: AxisLike = 0,
    exclusive: bool = False,
    reverse: bool = False,
    name: str | None = None,
) -> jax.Array:
    """Returns the cumulative product along an axis.

    Args:
        x: An array.
        axis: The axis.
        exclusive: Whether each product excludes the element itself.
        reverse: Whether to start at the end.
        name: Ignored.

    >>> cumprod([1, 2, 3])
    Array([1, 2, 6], dtype=int32)
    """
    x = numbers("math.cumprod", x)
    return _cumulative(
        "cumprod", lambda y, a: jnp.cumprod(y, a, dtype=y.dtype), 1, x, axis, exclusive, reverse
    )


def cumulative_logsumexp(
    x: ArrayLike,
    axis: AxisLike = 0,
    exclusive: bool = False,
    reverse: bool = False,
    name: str | None = None,
) -> jax.Array:
    """Returns the cumulative logarithm of the sum of exponentials along an axis.

    Args:
        x: An array of floats.
        axis: The axis.
        exclusive: Whether each result excludes the element itself.
        reverse: Whether to start at the end.
        name: Ignored.

    >>> cumulative_logsumexp([0.0, 0.0], exclusive=True)
    Array([-inf,   0.], dtype=float32)
    """
    x = floats("math.cumulative_logsumexp", x, real=True)
    start = -jnp.inf
    return _cumulative(
        "cumulative_logsumexp", jax.lax.cumlogsumexp, start, x, axis, exclusive, reverse
    )


def bincount(
    arr: ArrayLike,
    weights: ArrayLike = None,
    minlength: IntegerLike = None,
    maxlength: IntegerLike = None,
    dtype: DTypeLike = np.int32,
    name: str | None = None,
    axis: AxisLike = None,
    binary_output: bool = False,
) -> jax.Array:
    """Returns the number of occurrences of each integer from 0 on, or the sum of its weights.

    Args:
        arr: Integers >= 0. Compiled code needs equal ``minlength`` and ``maxlength``, because the size of
            the result must be known.
        weights: The weight of each integer.
        minlength: The minimum length of the result.
        maxlength: The maximum length of the result; larger integers are dropped.
        dtype: The dtype of the result without weights.
        name: Ignored.
        axis: Must be ``None``, or 0 for a vector.
        binary_output: Whether to count each integer at most once.

    >>> bincount([1, 1, 3])
    Array([0, 2, 0, 1], dtype=int32)
    """
    x = as_tensor(arr)
    if axis not in (None, 0) or (axis == 0 and x.ndim > 1):
        raise NotImplementedError(
            f"tf.math.bincount along axis {axis} is not supported. Use jax.vmap."
        )
    values = concrete(arr)
    shortest = 0 if minlength is None else integer("math.bincount", "minlength", minlength)
    longest = None if maxlength is None else integer("math.bincount", "maxlength", maxlength)
    if values is not None:
        if values.size and values.min() < 0:
            raise InvalidArgumentError(f"tf.math.bincount counts numbers >= 0, got {values.min()}.")
        length = max(shortest, int(values.max()) + 1 if values.size else 0)
        length = length if longest is None else min(length, longest)
    elif longest is not None and longest == shortest:
        length = longest
    else:
        raise InvalidArgumentError(
            "tf.math.bincount of traced integers needs a result of known length. Pass minlength=n and "
            "maxlength=n."
        )
    flat = x.ravel()
    kept = jnp.where(flat < 0, length, flat)
    if weights is not None:
        w = as_tensor(weights).ravel()
        return jnp.zeros(length, w.dtype).at[kept].add(w, mode="drop")
    counts = jnp.zeros(length, canonical_dtype(dtype)).at[kept].add(1, mode="drop")
    return jnp.minimum(counts, 1) if binary_output else counts


def confusion_matrix(
    labels: ArrayLike,
    predictions: ArrayLike,
    num_classes: IntegerLike = None,
    weights: ArrayLike = None,
    dtype: DTypeLike = np.int32,
    name: str | None = None,
) -> jax.Array:
    """Returns the number of times each class (row) was predicted as each class (column).

    >>> confusion_matrix([0, 1, 1], [0, 1, 0])
    Array([[1, 0],
           [1, 1]], dtype=int32)
    """
    if num_classes is None:
        known_labels, known_predictions = concrete(labels), concrete(predictions)
        if known_labels is None or known_predictions is None:
            raise InvalidArgumentError(
                "tf.math.confusion_matrix of traced labels needs num_classes: the size of the result "
                "must be known."
            )
        num_classes = max(int(known_labels.max()), int(known_predictions.max())) + 1
    labels, predictions = as_tensor(labels), as_tensor(predictions)
    size = integer("math.confusion_matrix", "num_classes", num_classes)
    dtype = canonical_dtype(dtype)
    counted = jnp.ones(labels.shape, dtype) if weights is None else as_tensor(weights).astype(dtype)
    return jnp.zeros((size, size), dtype).at[labels, predictions].add(counted)


def is_non_decreasing(x: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns whether no element is less than the one before it.

    >>> is_non_decreasing([1, 1, 2])
    Array(True, dtype=bool)
    """
    flat = numbers("math.is_non_decreasing", x).ravel()
    return jnp.all(flat[:-1] <= flat[1:])


def is_strictly_increasing(x: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns whether every element is greater than the one before it.

    >>> is_strictly_increasing([1, 1, 2])
    Array(False, dtype=bool)
    """
    flat = numbers("math.is_strictly_increasing", x).ravel()
    return jnp.all(flat[:-1] < flat[1:])


def _extreme(
    op: str, reduce: Callable[..., Any], value: ArrayLike, axis: AxisLike, keepdims: bool
) -> Tensor:
    x = numbers(op, value)
    if is_complex(x.dtype):
        raise InvalidArgumentError(f"tf.{op} needs real numbers, got {x.dtype.name}.")
    if is_float(x.dtype):
        start = -np.inf if op == "reduce_max" else np.inf
    else:
        limits = jnp.iinfo(x.dtype)
        start = limits.min if op == "reduce_max" else limits.max
    axes = axes_of(op, axis, x.ndim)
    if not all(x.shape[one] for one in axes):
        return reduce(x, axes, keepdims=bool(keepdims), initial=start)
    return reduce(x, axes, keepdims=bool(keepdims))


def _floats(op: str, value: ArrayLike) -> Tensor:
    x = as_tensor(value)
    if not (is_float(x.dtype) or is_complex(x.dtype)):
        raise TypeError(f"tf.{op} needs floating-point numbers, got {x.dtype.name}. Use tf.cast.")
    return x


def _index_of_extreme(
    op: str, find: Callable[..., Any], value: ArrayLike, axis: AxisLike, output_type: DTypeLike
) -> Tensor:
    x = as_tensor(value)
    dtype = as_dtype(output_type)
    if dtype.kind not in "iu":
        raise InvalidArgumentError(f"output_type of tf.{op} must be an integer dtype, got {dtype}.")
    [along] = axes_of(op, 0 if axis is None else integer(op, "axis", axis), x.ndim)
    return find(x, along).astype(canonical_dtype(dtype))


def _cumulative(
    op: str,
    accumulate: Callable[..., Any],
    start: ScalarLike,
    x: ArrayLike,
    axis: AxisLike,
    exclusive: bool,
    reverse: bool,
) -> Tensor:
    [along] = axes_of(op, integer(op, "axis", axis), x.ndim)
    if reverse:
        x = jnp.flip(x, along)
    if exclusive:
        padding = [(0, 0)] * x.ndim
        padding[along] = (1, 0)
        x = jax.lax.slice_in_dim(
            jnp.pad(x, padding, constant_values=start), 0, x.shape[along], axis=along
        )
    result = accumulate(x, along)
    return jnp.flip(result, along) if reverse else result
