"""``tf.math``: elementwise functions of one array."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.core.types import ArrayLike, Tensor
from stratagem._src.tensorflow_api.conversion import as_tensor, floats, is_float, numbers

__all__ = [
    "abs",
    "acos",
    "acosh",
    "angle",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "ceil",
    "conj",
    "cos",
    "cosh",
    "exp",
    "expm1",
    "floor",
    "imag",
    "is_finite",
    "is_inf",
    "is_nan",
    "log",
    "log1p",
    "log_sigmoid",
    "logical_not",
    "negative",
    "real",
    "reciprocal",
    "reciprocal_no_nan",
    "rint",
    "round",
    "rsqrt",
    "sigmoid",
    "sign",
    "sin",
    "sinh",
    "sqrt",
    "square",
    "tan",
    "tanh",
]


def abs(x: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the absolute value of each element; for complex numbers, the magnitude.

    >>> abs([-1.5, 2.0])
    Array([1.5, 2. ], dtype=float32)
    """
    array = numbers("math.abs", x)
    if not is_float(array.dtype):
        return jnp.abs(array)
    # The gradient at 0 is 0, as in TensorFlow; that of jnp.abs is 1.
    return jnp.where(array == 0, jnp.zeros_like(array), jnp.abs(array))


def acos(x: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the arc cosine of each element.

    >>> acos(1.0)
    Array(0., dtype=float32)
    """
    return jnp.arccos(floats("math.acos", x))


def acosh(x: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the inverse hyperbolic cosine of each element.

    >>> acosh(1.0)
    Array(0., dtype=float32)
    """
    return jnp.arccosh(floats("math.acosh", x))


def angle(input: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the argument (phase) of each element.

    >>> angle(1j)
    Array(1.5707964, dtype=float32)
    """
    return jnp.angle(as_tensor(input))


def asin(x: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the arc sine of each element.

    >>> asin(0.0)
    Array(0., dtype=float32)
    """
    return jnp.arcsin(floats("math.asin", x))


def asinh(x: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the inverse hyperbolic sine of each element.

    >>> asinh(0.0)
    Array(0., dtype=float32)
    """
    return jnp.arcsinh(floats("math.asinh", x))


def atan(x: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the arc tangent of each element.

    >>> atan(0.0)
    Array(0., dtype=float32)
    """
    return jnp.arctan(floats("math.atan", x))


def atanh(x: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the inverse hyperbolic tangent of each element.

    >>> atanh(0.0)
    Array(0., dtype=float32)
    """
    return jnp.arctanh(floats("math.atanh", x))


def ceil(x: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns each element rounded up to an integer.

    >>> ceil([1.2, -1.2])
    Array([ 2., -1.], dtype=float32)
    """
    return jnp.ceil(floats("math.ceil", x, real=True))


def conj(x: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the complex conjugate of each element; real numbers are unchanged.

    >>> conj(1 + 2j)
    Array(1.-2.j, dtype=complex64)
    """
    return jnp.conj(as_tensor(x))


def cos(x: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the cosine of each element.

    >>> cos(0.0)
    Array(1., dtype=float32)
    """
    return jnp.cos(floats("math.cos", x))


def cosh(x: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the hyperbolic cosine of each element.

    >>> cosh(0.0)
    Array(1., dtype=float32)
    """
    return jnp.cosh(floats("math.cosh", x))


def exp(x: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the exponential of each element.

    >>> exp([0.0, 1.0])
    Array([1.       , 2.7182817], dtype=float32)
    """
    return jnp.exp(floats("math.exp", x))


def expm1(x: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns ``exp(x) - 1``, accurately for small elements.

    >>> expm1(0.0)
    Array(0., dtype=float32)
    """
    return jnp.expm1(floats("math.expm1", x))


def floor(x: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns each element rounded down to an integer.

    >>> floor([1.2, -1.2])
    Array([ 1., -2.], dtype=float32)
    """
    return jnp.floor(floats("math.floor", x, real=True))


def imag(input: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the imaginary part of each element.

    >>> imag(1 + 2j)
    Array(2., dtype=float32)
    """
    return jnp.imag(as_tensor(input))


def is_finite(x: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns whether each element is neither infinite nor NaN.

    >>> is_finite([1.0, float("inf")])
    Array([ True, False], dtype=bool)
    """
    return jnp.isfinite(floats("math.is_finite", x, real=True))


def is_inf(x: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns whether each element is infinite.

    >>> is_inf([1.0, float("inf")])
    Array([False,  True], dtype=bool)
    """
    return jnp.isinf(floats("math.is_inf", x, real=True))


def is_nan(x: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns whether each element is NaN.

    >>> is_nan([1.0, float("nan")])
    Array([False,  True], dtype=bool)
    """
    return jnp.isnan(floats("math.is_nan", x, real=True))


def log(x: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the natural logarithm of each element.

    >>> log(1.0)
    Array(0., dtype=float32)
    """
    return jnp.log(floats("math.log", x))


def log1p(x: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns ``log(1 + x)``, accurately for small elements.

    >>> log1p(0.0)
    Array(0., dtype=float32)
    """
    return jnp.log1p(floats("math.log1p", x))


def log_sigmoid(x: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the logarithm of the sigmoid of each element.

    >>> log_sigmoid(0.0)
    Array(-0.6931472, dtype=float32)
    """
    return jax.nn.log_sigmoid(floats("math.log_sigmoid", x, real=True))


def logical_not(x: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the negation of each boolean.

    >>> logical_not([True, False])
    Array([False,  True], dtype=bool)
    """
    return jnp.logical_not(as_tensor(x, np.bool_))


def negative(x: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the negative of each element.

    >>> negative([1, -2])
    Array([-1,  2], dtype=int32)
    """
    return jnp.negative(numbers("math.negative", x))


def real(input: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the real part of each element.

    >>> real(1 + 2j)
    Array(1., dtype=float32)
    """
    return jnp.real(as_tensor(input))


def reciprocal(x: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns 1 divided by each element.

    >>> reciprocal(4.0)
    Array(0.25, dtype=float32)
    """
    return 1 / floats("math.reciprocal", x)


def reciprocal_no_nan(x: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns 1 divided by each element, and 0 where an element is 0.

    >>> reciprocal_no_nan([4.0, 0.0])
    Array([0.25, 0.  ], dtype=float32)
    """
    return _no_nan(floats("math.reciprocal_no_nan", x))


def rint(x: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns each element rounded to the nearest integer, ties to even.

    >>> rint([0.5, 1.5])
    Array([0., 2.], dtype=float32)
    """
    return jnp.rint(floats("math.rint", x, real=True))


def round(x: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns each element rounded to the nearest integer, ties to even.

    >>> round([0.5, 1.5])
    Array([0., 2.], dtype=float32)
    """
    return _rounded(numbers("math.round", x))


def rsqrt(x: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns 1 divided by the square root of each element.

    >>> rsqrt(4.0)
    Array(0.5, dtype=float32)
    """
    return jax.lax.rsqrt(floats("math.rsqrt", x))


def sigmoid(x: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns ``1 / (1 + exp(-x))`` of each element.

    >>> sigmoid(0.0)
    Array(0.5, dtype=float32)
    """
    return jax.nn.sigmoid(floats("math.sigmoid", x))


def sign(x: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns -1, 0 or 1 for each element; ``x / abs(x)`` for complex numbers.

    >>> sign([-2, 0, 3])
    Array([-1,  0,  1], dtype=int32)
    """
    return jnp.sign(numbers("math.sign", x))


def sin(x: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the sine of each element.

    >>> sin(0.0)
    Array(0., dtype=float32)
    """
    return jnp.sin(floats("math.sin", x))


def sinh(x: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the hyperbolic sine of each element.

    >>> sinh(0.0)
    Array(0., dtype=float32)
    """
    return jnp.sinh(floats("math.sinh", x))


def sqrt(x: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the square root of each element.

    >>> sqrt([4.0, 9.0])
    Array([2., 3.], dtype=float32)
    """
    return jnp.sqrt(floats("math.sqrt", x))


def square(x: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the square of each element.

    >>> square([2, -3])
    Array([4, 9], dtype=int32)
    """
    return jnp.square(numbers("math.square", x))


def tan(x: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the tangent of each element.

    >>> tan(0.0)
    Array(0., dtype=float32)
    """
    return jnp.tan(floats("math.tan", x))


def tanh(x: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the hyperbolic tangent of each element.

    >>> tanh(0.0)
    Array(0., dtype=float32)
    """
    return jnp.tanh(floats("math.tanh", x))


def _no_nan(x: ArrayLike) -> Tensor:
    # Without the division by zero, the gradient is not NaN either.
    zero = x == 0
    return jnp.where(zero, jnp.zeros_like(x), 1 / jnp.where(zero, jnp.ones_like(x), x))


def _rounded(x: ArrayLike) -> Tensor:
    return x if jnp.issubdtype(x.dtype, jnp.integer) else jnp.round(x)
