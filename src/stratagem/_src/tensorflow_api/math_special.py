"""``tf.math``: special functions, approximate top k, and normalization."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import jax.scipy.special as special
import numpy as np

from stratagem._src.core.types import ArrayLike, AxisLike, IntegerLike
from stratagem._src.tensorflow_api.array_sorting import (
    TopK,
)
from stratagem._src.tensorflow_api.conversion import (
    as_tensor,
    axes_of,
    floats,
    integer,
    matched,
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
    """Returns the inverse of the cumulative distribution function of the standard normal distribution.

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
    # JAX takes integer orders only.
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
    """Returns approximately the ``k`` largest elements along an axis and their indices; exact on CPU.

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
    """Returns approximately the ``k`` smallest elements along an axis and their indices; exact on CPU.

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
    """Returns the array divided by its Euclidean norm along axes, whose square is clamped to ``epsilon``.

    >>> l2_normalize([3.0, 4.0])
    Array([0.6, 0.8], dtype=float32)
    """
    array = as_tensor(x)
    if not jnp.issubdtype(array.dtype, jnp.inexact):
        raise TypeError(
            f"tf.math.l2_normalize needs floating-point numbers, got {array.dtype.name}."
        )
    axes = axes_of("math.l2_normalize", dim if axis is None else axis, array.ndim)
    squares = jnp.sum(jnp.real(array * jnp.conj(array)), axes, keepdims=True)
    return array * jax.lax.rsqrt(jnp.maximum(squares, epsilon))
