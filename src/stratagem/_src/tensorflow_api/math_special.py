"""``tf.math``: special functions, and sums over segments."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.special as special
import numpy as np

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import ArrayLike, AxisLike, IntegerLike, Tensor
from stratagem._src.tensorflow_api.array_indexing import TopK
from stratagem._src.tensorflow_api.conversion import (
    axes_of,
    floats,
    integer,
    is_float,
    known,
    matched,
    tensor,
)

__all__ = [
    "approx_max_k",
    "approx_min_k",
    "bessel_i0",
    "bessel_i0e",
    "bessel_i1",
    "bessel_i1e",
    "betainc",
    "digamma",
    "erf",
    "erfc",
    "erfcinv",
    "erfinv",
    "igamma",
    "igammac",
    "l2_normalize",
    "lbeta",
    "lgamma",
    "ndtri",
    "polygamma",
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
    "zeta",
]


def bessel_i0(x: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the modified Bessel function of order 0.

    >>> bessel_i0(0.0)
    Array(1.0000001, dtype=float32)
    """
    return special.i0(floats("math.bessel_i0", x, real=True))


def bessel_i0e(x: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the exponentially scaled modified Bessel function of order 0.

    >>> bessel_i0e(0.0)
    Array(1.0000001, dtype=float32)
    """
    return special.i0e(floats("math.bessel_i0e", x, real=True))


def bessel_i1(x: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the modified Bessel function of order 1.

    >>> bessel_i1(0.0)
    Array(0., dtype=float32)
    """
    return special.i1(floats("math.bessel_i1", x, real=True))


def bessel_i1e(x: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the exponentially scaled modified Bessel function of order 1.

    >>> bessel_i1e(0.0)
    Array(0., dtype=float32)
    """
    return special.i1e(floats("math.bessel_i1e", x, real=True))


def betainc(a: ArrayLike, b: ArrayLike, x: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the regularized incomplete beta function.

    >>> betainc(1.0, 1.0, 0.5)
    Array(0.5000005, dtype=float32)
    """
    return special.betainc(*matched("math.betainc", a, b, x))


def digamma(x: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the derivative of ``lgamma``.

    >>> digamma(2.0)
    Array(0.42278463, dtype=float32)
    """
    return special.digamma(floats("math.digamma", x, real=True))


def erf(x: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the error function of each element.

    >>> erf(0.0)
    Array(0., dtype=float32)
    """
    return special.erf(floats("math.erf", x, real=True))


def erfc(x: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns ``1 - erf(x)``.

    >>> erfc(0.0)
    Array(1., dtype=float32)
    """
    return special.erfc(floats("math.erfc", x, real=True))


def erfinv(x: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the inverse of ``erf``.

    >>> erfinv(0.0)
    Array(0., dtype=float32)
    """
    return special.erfinv(floats("math.erfinv", x, real=True))


def erfcinv(x: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the inverse of ``erfc``.

    >>> erfcinv(1.0)
    Array(-0., dtype=float32)
    """
    array = floats("math.erfcinv", x, real=True)
    return -special.ndtri(0.5 * array) * np.sqrt(0.5).astype(array.dtype)


def igamma(a: ArrayLike, x: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the lower regularized incomplete gamma function.

    >>> igamma(1.0, 0.0)
    Array(0., dtype=float32)
    """
    return special.gammainc(*matched("math.igamma", a, x))


def igammac(a: ArrayLike, x: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the upper regularized incomplete gamma function.

    >>> igammac(1.0, 0.0)
    Array(1., dtype=float32)
    """
    return special.gammaincc(*matched("math.igammac", a, x))


def lbeta(x: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the logarithm of the beta function of the elements along the last axis.

    >>> lbeta([1.0, 1.0])
    Array(9.536743e-07, dtype=float32)
    """
    array = floats("math.lbeta", x, real=True)
    return jnp.sum(special.gammaln(array), -1) - special.gammaln(jnp.sum(array, -1))


def lgamma(x: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the logarithm of the absolute value of the gamma function.

    >>> lgamma(1.0)
    Array(4.7683716e-07, dtype=float32)
    """
    return special.gammaln(floats("math.lgamma", x, real=True))


def ndtri(x: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the inverse of the distribution function of the standard normal distribution.

    >>> ndtri(0.5)
    Array(0., dtype=float32)
    """
    return special.ndtri(floats("math.ndtri", x, real=True))


def polygamma(a: ArrayLike, x: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the derivative of order ``a`` of ``digamma``.

    >>> float(polygamma(1.0, 1.0)) > 1.6
    True
    """
    order, array = matched("math.polygamma", a, x)
    # JAX takes whole orders only, and no others have a value here.
    return special.polygamma(order.astype(np.int32), array)


def zeta(x: ArrayLike, q: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the Hurwitz zeta function.

    >>> float(zeta(2.0, 1.0)) > 1.6
    True
    """
    return special.zeta(*matched("math.zeta", x, q))


def approx_max_k(
    operand: ArrayLike,
    k: IntegerLike,
    reduction_dimension: AxisLike = -1,
    recall_target: float = 0.95,
    reduction_input_size_override: IntegerLike = -1,
    aggregate_to_topk: bool = True,
    name: str | None = None,
) -> TopK:
    """Returns about the ``k`` largest elements along an axis, and their indices; on CPU just those.

    JAX equivalent: ``jax.lax.approx_max_k``.

    >>> approx_max_k([1.0, 5.0, 3.0], 1)
    TopK(values=Array([5.], dtype=float32), indices=Array([1], dtype=int32))
    """
    x = floats("math.approx_max_k", operand)
    return TopK(
        *jax.lax.approx_max_k(
            x, integer("math.approx_max_k", "k", k), reduction_dimension, recall_target
        )
    )


def approx_min_k(
    operand: ArrayLike,
    k: IntegerLike,
    reduction_dimension: AxisLike = -1,
    recall_target: float = 0.95,
    reduction_input_size_override: IntegerLike = -1,
    aggregate_to_topk: bool = True,
    name: str | None = None,
) -> TopK:
    """Returns about the ``k`` smallest elements along an axis, and their indices; on CPU just those.

    JAX equivalent: ``jax.lax.approx_min_k``.

    >>> approx_min_k([1.0, 5.0, 3.0], 1)
    TopK(values=Array([1.], dtype=float32), indices=Array([0], dtype=int32))
    """
    x = floats("math.approx_min_k", operand)
    return TopK(
        *jax.lax.approx_min_k(
            x, integer("math.approx_min_k", "k", k), reduction_dimension, recall_target
        )
    )


def l2_normalize(
    x: ArrayLike,
    axis: AxisLike = None,
    epsilon: float = 1e-12,
    name: str | None = None,
    dim: AxisLike = None,
) -> jax.Array:
    """Returns the array divided by its Euclidean norm along axes; its square is at least ``epsilon``.

    >>> l2_normalize([3.0, 4.0])
    Array([0.6, 0.8], dtype=float32)
    """
    array = tensor(x)
    if not jnp.issubdtype(array.dtype, jnp.inexact):
        raise TypeError(
            f"tf.math.l2_normalize needs floating-point numbers, got {array.dtype.name}."
        )
    axes = axes_of("math.l2_normalize", dim if axis is None else axis, array.ndim)
    squares = jnp.sum(jnp.real(array * jnp.conj(array)), axes, keepdims=True)
    return array * jax.lax.rsqrt(jnp.maximum(squares, epsilon))


def segment_sum(data: ArrayLike, segment_ids: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the sum of rows of each segment; the numbers of segments are sorted, and not traced.

    >>> segment_sum([1, 2, 3], [0, 0, 2])
    Array([3, 0, 3], dtype=int32)
    """
    return _segments("segment_sum", "sum", data, segment_ids)


def segment_mean(data: ArrayLike, segment_ids: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the mean of rows of each segment; the numbers of segments are sorted, and not traced.

    >>> segment_mean([1.0, 2.0, 3.0], [0, 0, 2])
    Array([1.5, 0. , 3. ], dtype=float32)
    """
    return _segments("segment_mean", "mean", data, segment_ids)


def segment_max(data: ArrayLike, segment_ids: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the largest row elements of each segment, 0 for one without rows.

    >>> segment_max([1, 2, 3], [0, 0, 2])
    Array([2, 0, 3], dtype=int32)
    """
    return _segments("segment_max", "max", data, segment_ids)


def segment_min(data: ArrayLike, segment_ids: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the smallest row elements of each segment, 0 for one without rows.

    >>> segment_min([1, 2, 3], [0, 0, 2])
    Array([1, 0, 3], dtype=int32)
    """
    return _segments("segment_min", "min", data, segment_ids)


def segment_prod(data: ArrayLike, segment_ids: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the product of rows of each segment, 1 for one without rows.

    >>> segment_prod([1, 2, 3], [0, 0, 2])
    Array([2, 1, 3], dtype=int32)
    """
    return _segments("segment_prod", "prod", data, segment_ids)


def unsorted_segment_sum(
    data: ArrayLike, segment_ids: ArrayLike, num_segments: IntegerLike, name: str | None = None
) -> jax.Array:
    """Returns the sum of rows of each of so many segments; rows with a negative number are left out.

    JAX equivalent: ``jax.ops.segment_sum``.

    >>> unsorted_segment_sum([1, 2, 3], [1, 0, 1], 2)
    Array([2, 4], dtype=int32)
    """
    return _unsorted("unsorted_segment_sum", "sum", data, segment_ids, num_segments)


def unsorted_segment_mean(
    data: ArrayLike, segment_ids: ArrayLike, num_segments: IntegerLike, name: str | None = None
) -> jax.Array:
    """Returns the mean of rows of each of so many segments, 0 for one without rows.

    >>> unsorted_segment_mean([1.0, 2.0, 3.0], [1, 0, 1], 2)
    Array([2., 2.], dtype=float32)
    """
    return _unsorted("unsorted_segment_mean", "mean", data, segment_ids, num_segments)


def unsorted_segment_max(
    data: ArrayLike, segment_ids: ArrayLike, num_segments: IntegerLike, name: str | None = None
) -> jax.Array:
    """Returns the largest row elements of each segment, the lowest number of the dtype without rows.

    >>> unsorted_segment_max([1, 2, 3], [1, 0, 1], 2)
    Array([2, 3], dtype=int32)
    """
    return _unsorted("unsorted_segment_max", "max", data, segment_ids, num_segments)


def unsorted_segment_min(
    data: ArrayLike, segment_ids: ArrayLike, num_segments: IntegerLike, name: str | None = None
) -> jax.Array:
    """Returns the smallest row elements of each segment, the highest number of the dtype without rows.

    >>> unsorted_segment_min([1, 2, 3], [1, 0, 1], 2)
    Array([2, 1], dtype=int32)
    """
    return _unsorted("unsorted_segment_min", "min", data, segment_ids, num_segments)


def unsorted_segment_prod(
    data: ArrayLike, segment_ids: ArrayLike, num_segments: IntegerLike, name: str | None = None
) -> jax.Array:
    """Returns the product of rows of each of so many segments, 1 for one without rows.

    >>> unsorted_segment_prod([1, 2, 3], [1, 0, 1], 2)
    Array([2, 3], dtype=int32)
    """
    return _unsorted("unsorted_segment_prod", "prod", data, segment_ids, num_segments)


def unsorted_segment_sqrt_n(
    data: ArrayLike, segment_ids: ArrayLike, num_segments: IntegerLike, name: str | None = None
) -> jax.Array:
    """Returns the sum of rows of each segment, divided by the square root of their number.

    >>> unsorted_segment_sqrt_n([1.0, 2.0, 3.0, 4.0], [0, 0, 0, 0], 1)
    Array([5.], dtype=float32)
    """
    return _unsorted("unsorted_segment_sqrt_n", "sqrt_n", data, segment_ids, num_segments)


def _segments(op: str, how: str, data: ArrayLike, segment_ids: ArrayLike) -> Tensor:
    values = known(segment_ids)
    if values is None:
        raise InvalidArgumentError(
            f"tf.math.{op} of traced segment_ids would have a size that is not known. Use "
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
        result = result.astype(tensor(data).dtype)
    return result


def _unsorted(
    op: str, how: str, data: ArrayLike, segment_ids: ArrayLike, num_segments: IntegerLike
) -> Tensor:
    rows, ids = tensor(data), tensor(segment_ids)
    if rows.shape[: ids.ndim] != ids.shape:
        raise InvalidArgumentError(
            f"segment_ids of tf.math.{op} must have data's leading shape, got {ids.shape} and {rows.shape}."
        )
    count = integer(f"math.{op}", "num_segments", num_segments)
    values = known(segment_ids)
    if values is not None and values.size and values.max() >= count:
        raise InvalidArgumentError(
            f"segment_ids of tf.math.{op} must be below num_segments, {count}, got {values.max()}."
        )
    ids = jnp.where(ids < 0, count, ids).ravel()
    rows = rows.reshape((ids.size, *rows.shape[tensor(segment_ids).ndim :]))
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
