"""``tf.math``: elementwise functions of two arrays of the same dtype."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.core.dtypes import is_host_only
from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import ArrayLike, DTypeLike, ScalarLike, ShapeLike, Tensor
from stratagem._src.tensorflow_api.conversion import (
    as_tensor,
    canonical_dtype,
    concrete,
    is_complex,
    is_float,
    matched,
)
from stratagem._src.tensorflow_api.host_tensor import HostTensor, keeps_sizes

__all__ = [
    "accumulate_n",
    "add",
    "add_n",
    "atan2",
    "divide",
    "divide_no_nan",
    "equal",
    "floordiv",
    "floormod",
    "greater",
    "greater_equal",
    "less",
    "less_equal",
    "logical_and",
    "logical_or",
    "logical_xor",
    "maximum",
    "minimum",
    "mod",
    "multiply",
    "multiply_no_nan",
    "nextafter",
    "not_equal",
    "polyval",
    "pow",
    "realdiv",
    "scalar_mul",
    "squared_difference",
    "subtract",
    "truediv",
    "truncatediv",
    "truncatemod",
    "xdivy",
    "xlog1py",
    "xlogy",
]


@keeps_sizes
def add(x: ArrayLike, y: ArrayLike, name: str | None = None) -> Tensor:
    """Returns ``x + y``; strings are concatenated.

    Differs from TensorFlow: a Python number takes the dtype of the array even if it comes first.

    >>> add([1, 2], 3)
    Array([4, 5], dtype=int32)
    """
    x, y = _numbers("add", x, y, strings=True)
    return HostTensor.of(x + y) if is_host_only(x.dtype) else jnp.add(x, y)


@keeps_sizes
def subtract(x: ArrayLike, y: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns ``x - y``.

    >>> subtract([1, 2], 3)
    Array([-2, -1], dtype=int32)
    """
    return jnp.subtract(*_numbers("subtract", x, y))


@keeps_sizes
def multiply(x: ArrayLike, y: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns ``x * y``.

    >>> multiply([1, 2], 3)
    Array([3, 6], dtype=int32)
    """
    return jnp.multiply(*_numbers("multiply", x, y))


def scalar_mul(scalar: ScalarLike, x: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns a scalar times ``x``.

    >>> scalar_mul(2.0, [1.0, 3.0])
    Array([2., 6.], dtype=float32)
    """
    x = as_tensor(x)
    scalar = as_tensor(scalar, x.dtype)
    if scalar.ndim:
        raise ValueError(f"scalar_mul needs a scalar, got shape {scalar.shape}. Use tf.multiply.")
    return multiply(scalar, x)


def divide(x: ArrayLike, y: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns ``x / y`` as in Python: integers give floats, with 64 bits in JAX's 64-bit mode.

    >>> divide([1, 2], 2)
    Array([0.5, 1. ], dtype=float32)
    """
    return truediv(x, y)


def truediv(x: ArrayLike, y: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns ``x / y`` as in Python: integers give floats, with 64 bits in JAX's 64-bit mode.

    >>> truediv([1, 2], 2)
    Array([0.5, 1. ], dtype=float32)
    """
    x, y = _numbers("math.truediv", x, y)
    dtype = _quotient_dtype(x.dtype)
    return jnp.divide(x.astype(dtype), y.astype(dtype))


def realdiv(x: ArrayLike, y: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns ``x / y`` of floats.

    >>> realdiv(1.0, 4.0)
    Array(0.25, dtype=float32)
    """
    return jnp.divide(*_floats("realdiv", x, y))


def divide_no_nan(x: ArrayLike, y: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns ``x / y``, and 0 where ``y`` is 0.

    >>> divide_no_nan([1.0, 1.0], [2.0, 0.0])
    Array([0.5, 0. ], dtype=float32)
    """
    x, y = _numbers("math.divide_no_nan", x, y)
    dtype = _quotient_dtype(x.dtype)
    x, y = x.astype(dtype), y.astype(dtype)
    zero = y == 0
    return jnp.where(zero, jnp.zeros((), dtype), x / jnp.where(zero, jnp.ones((), dtype), y))


def multiply_no_nan(x: ArrayLike, y: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns ``x * y``, and 0 where ``y`` is 0, even if ``x`` is infinite or NaN.

    >>> multiply_no_nan(float("inf"), 0.0)
    Array(0., dtype=float32)
    """
    x, y = _floats("math.multiply_no_nan", x, y)
    zero = y == 0
    return jnp.where(zero, jnp.zeros((), x.dtype), jnp.where(zero, jnp.zeros((), x.dtype), x) * y)


@keeps_sizes
def floordiv(x: ArrayLike, y: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns ``x / y`` rounded down.

    >>> floordiv([7, -7], 2)
    Array([ 3, -4], dtype=int32)
    """
    given = y
    x, y = _numbers("math.floordiv", x, y)
    if is_float(x.dtype):
        return jnp.floor(x / y)
    return jnp.floor_divide(x, _not_zero("math.floordiv", y, given))


@keeps_sizes
def floormod(x: ArrayLike, y: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the remainder of ``floordiv``, which has the sign of ``y``.

    >>> floormod([7, -7], 3)
    Array([1, 2], dtype=int32)
    """
    given = y
    x, y = _numbers("math.floormod", x, y)
    return jnp.mod(x, y if is_float(x.dtype) else _not_zero("math.floormod", y, given))


@keeps_sizes
def mod(x: ArrayLike, y: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the remainder of ``floordiv``, which has the sign of ``y``.

    >>> mod([7, -7], 3)
    Array([1, 2], dtype=int32)
    """
    return floormod(x, y)


def truncatediv(x: ArrayLike, y: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns ``x / y`` of integers, rounded towards 0.

    >>> truncatediv([7, -7], 2)
    Array([ 3, -3], dtype=int32)
    """
    given = y
    x, y = _numbers("truncatediv", x, y)
    if is_float(x.dtype):
        return jnp.trunc(x / y)
    return jax.lax.div(*jnp.broadcast_arrays(x, _not_zero("truncatediv", y, given)))


def truncatemod(x: ArrayLike, y: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the remainder of ``truncatediv``, which has the sign of ``x``.

    >>> truncatemod([7, -7], 3)
    Array([ 1, -1], dtype=int32)
    """
    given = y
    x, y = _numbers("truncatemod", x, y)
    return jnp.fmod(x, y if is_float(x.dtype) else _not_zero("truncatemod", y, given))


def pow(x: ArrayLike, y: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns ``x`` to the power of ``y``.

    >>> pow([2.0, 3.0], 2)
    Array([4., 9.], dtype=float32)
    """
    given = y
    x, y = _numbers("pow", x, y)
    if not (is_float(x.dtype) or is_complex(x.dtype)):
        exponents = concrete(given)
        if exponents is not None and (exponents < 0).any():
            raise InvalidArgumentError(
                "tf.pow of integers needs exponents >= 0, got a negative one. Use floats: "
                "tf.cast(x, tf.float32)."
            )
    return jnp.power(x, y)


@keeps_sizes
def maximum(x: ArrayLike, y: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the elementwise maximum.

    >>> maximum([1.0, -2.0], 0.0)
    Array([1., 0.], dtype=float32)
    """
    x, y = _real("maximum", x, y)
    return _select(x >= y, x, y)


@keeps_sizes
def minimum(x: ArrayLike, y: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the elementwise minimum.

    >>> minimum([1.0, -2.0], 0.0)
    Array([ 0., -2.], dtype=float32)
    """
    x, y = _real("minimum", x, y)
    return _select(x <= y, x, y)


def squared_difference(x: ArrayLike, y: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns ``(x - y)**2``; for complex numbers, ``(x - y) * conj(x - y)``.

    >>> squared_difference([1.0, 5.0], 3.0)
    Array([4., 4.], dtype=float32)
    """
    x, y = _numbers("math.squared_difference", x, y)
    difference = x - y
    if is_complex(x.dtype):
        return jnp.conj(difference) * difference
    return jnp.square(difference)


def atan2(y: ArrayLike, x: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the angle of the point ``(x, y)``.

    >>> atan2(0.0, 1.0)
    Array(0., dtype=float32)
    """
    return jnp.arctan2(*_floats("atan2", y, x))


def nextafter(x1: ArrayLike, x2: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the next representable number after ``x1`` towards ``x2``.

    >>> bool(nextafter(1.0, 2.0) > 1.0)
    True
    """
    return jnp.nextafter(*_floats("math.nextafter", x1, x2))


def xlogy(x: ArrayLike, y: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns ``x * log(y)``, and 0 where ``x`` is 0.

    >>> xlogy([0.0, 1.0], [0.0, 1.0])
    Array([0., 0.], dtype=float32)
    """
    x, y = _floats("math.xlogy", x, y)
    zero = x == 0
    return jnp.where(
        zero, jnp.zeros((), x.dtype), x * jnp.log(jnp.where(zero, jnp.ones((), x.dtype), y))
    )


def xlog1py(x: ArrayLike, y: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns ``x * log1p(y)``, and 0 where ``x`` is 0.

    >>> xlog1py([0.0, 1.0], [-1.0, 0.0])
    Array([0., 0.], dtype=float32)
    """
    x, y = _floats("math.xlog1py", x, y)
    zero = x == 0
    return jnp.where(
        zero, jnp.zeros((), x.dtype), x * jnp.log1p(jnp.where(zero, jnp.zeros((), x.dtype), y))
    )


def xdivy(x: ArrayLike, y: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns ``x / y``, and 0 where ``x`` is 0.

    >>> xdivy([0.0, 1.0], [0.0, 2.0])
    Array([0. , 0.5], dtype=float32)
    """
    x, y = _floats("math.xdivy", x, y)
    zero = x == 0
    return jnp.where(zero, jnp.zeros((), x.dtype), x / jnp.where(zero, jnp.ones((), x.dtype), y))


def equal(x: ArrayLike, y: ArrayLike, name: str | None = None) -> Tensor:
    """Returns whether elements are equal.

    >>> equal([1, 2], [1, 3])
    Array([ True, False], dtype=bool)
    """
    x, y = matched("equal", x, y)
    return HostTensor.of(np.equal(x, y)) if is_host_only(x.dtype) else jnp.equal(x, y)


def not_equal(x: ArrayLike, y: ArrayLike, name: str | None = None) -> Tensor:
    """Returns whether elements are different.

    >>> not_equal([1, 2], [1, 3])
    Array([False,  True], dtype=bool)
    """
    x, y = matched("not_equal", x, y)
    return HostTensor.of(np.not_equal(x, y)) if is_host_only(x.dtype) else jnp.not_equal(x, y)


def greater(x: ArrayLike, y: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns ``x > y`` for each element.

    >>> greater([1, 2], 1)
    Array([False,  True], dtype=bool)
    """
    return jnp.greater(*_real("greater", x, y))


def greater_equal(x: ArrayLike, y: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns ``x >= y`` for each element.

    >>> greater_equal([1, 2], 2)
    Array([False,  True], dtype=bool)
    """
    return jnp.greater_equal(*_real("greater_equal", x, y))


def less(x: ArrayLike, y: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns ``x < y`` for each element.

    >>> less([1, 2], 2)
    Array([ True, False], dtype=bool)
    """
    return jnp.less(*_real("less", x, y))


def less_equal(x: ArrayLike, y: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns ``x <= y`` for each element.

    >>> less_equal([1, 2], 1)
    Array([ True, False], dtype=bool)
    """
    return jnp.less_equal(*_real("less_equal", x, y))


def logical_and(x: ArrayLike, y: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns whether both booleans are true.

    >>> logical_and([True, True], [True, False])
    Array([ True, False], dtype=bool)
    """
    return jnp.logical_and(as_tensor(x, np.bool_), as_tensor(y, np.bool_))


def logical_or(x: ArrayLike, y: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns whether at least one of two booleans is true.

    >>> logical_or([False, True], [False, False])
    Array([False,  True], dtype=bool)
    """
    return jnp.logical_or(as_tensor(x, np.bool_), as_tensor(y, np.bool_))


def logical_xor(x: ArrayLike, y: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns whether exactly one of two booleans is true.

    >>> logical_xor([True, True], [True, False])
    Array([False,  True], dtype=bool)
    """
    return jnp.logical_xor(as_tensor(x, np.bool_), as_tensor(y, np.bool_))


def add_n(inputs: Sequence[ArrayLike], name: str | None = None) -> jax.Array:
    """Returns the sum of arrays of the same shape.

    >>> add_n([[1.0, 2.0], [3.0, 4.0]])
    Array([4., 6.], dtype=float32)
    """
    return _sum("add_n", inputs)


def accumulate_n(
    inputs: Sequence[ArrayLike],
    shape: ShapeLike = None,
    tensor_dtype: DTypeLike = None,
    name: str | None = None,
) -> jax.Array:
    """Returns the sum of arrays of the same shape.

    >>> accumulate_n([[1.0, 2.0], [3.0, 4.0]])
    Array([4., 6.], dtype=float32)
    """
    return _sum("math.accumulate_n", inputs)


def polyval(coeffs: list[ArrayLike], x: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns a polynomial of ``x``; the coefficient of the highest power comes first.

    >>> polyval([1.0, 0.0, 2.0], 3.0)
    Array(11., dtype=float32)
    """
    if not isinstance(coeffs, list):
        raise ValueError(f"coeffs of tf.math.polyval must be a list, got {type(coeffs).__name__}.")
    x = as_tensor(x)
    total = jnp.zeros_like(x)
    for coefficient in coeffs:
        total = total * x + as_tensor(coefficient, x.dtype)
    return total


def _sum(op: str, inputs: Sequence[ArrayLike]) -> Tensor:
    if not isinstance(inputs, Sequence) or not inputs:
        raise ValueError(f"tf.{op} needs a list of at least one array, got {inputs!r}.")
    arrays = matched(op, *inputs)
    shapes = {array.shape for array in arrays}
    if len(shapes) > 1:
        raise InvalidArgumentError(f"tf.{op} needs arrays of the same shape, got {sorted(shapes)}.")
    total = arrays[0]
    for array in arrays[1:]:
        total = total + array
    return total


def _numbers(op: str, x: ArrayLike, y: ArrayLike, *, strings: bool = False) -> list[Tensor]:
    arrays = matched(op, x, y)
    dtype = arrays[0].dtype
    if dtype == np.bool_ or (is_host_only(dtype) and not strings):
        name = "booleans" if dtype == np.bool_ else "strings"
        raise InvalidArgumentError(
            f"tf.{op} needs numbers, got {name}. Convert them: tf.cast(x, tf.int32)."
        )
    return arrays


def _real(op: str, x: ArrayLike, y: ArrayLike) -> list[Tensor]:
    arrays = _numbers(op, x, y)
    if is_complex(arrays[0].dtype):
        raise InvalidArgumentError(f"tf.{op} needs real numbers, got {arrays[0].dtype.name}.")
    return arrays


def _select(takes_x: Tensor, x: Tensor, y: Tensor) -> jax.Array:
    """Returns ``x`` where ``takes_x`` or ``x`` is NaN, else ``y``.

    The whole gradient of two equal elements goes to ``x``, as in TensorFlow; ``jnp.maximum`` divides it.
    """
    return jnp.where(takes_x | (x != x), x, y)


def _floats(op: str, x: ArrayLike, y: ArrayLike) -> list[Tensor]:
    arrays = matched(op, x, y)
    if not (is_float(arrays[0].dtype) or is_complex(arrays[0].dtype)):
        raise InvalidArgumentError(
            f"tf.{op} needs floating-point numbers, got {arrays[0].dtype.name}. Convert them: "
            "tf.cast(x, tf.float32)."
        )
    return arrays


def _quotient_dtype(dtype: DTypeLike) -> DTypeLike:
    if is_float(dtype) or is_complex(dtype):
        return dtype
    return canonical_dtype(np.float32 if dtype.itemsize < 4 else np.float64)


def _not_zero(op: str, y: ArrayLike, given: ArrayLike) -> Tensor:
    divisor = concrete(given)
    if divisor is not None and not divisor.all():
        raise InvalidArgumentError(
            f"tf.{op} of integers cannot divide by zero, got a divisor of 0."
        )
    return y
