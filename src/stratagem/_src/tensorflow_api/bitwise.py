"""``tf.bitwise``: operations on the bits of integers."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import ArrayLike, Tensor
from stratagem._src.tensorflow_api.conversion import as_tensor, matched

__all__ = [
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "invert",
    "left_shift",
    "right_shift",
]


def _integers(op: str, *values: ArrayLike) -> list[Tensor]:
    arrays = matched(f"bitwise.{op}", *values)
    for array in arrays:
        if array.dtype.kind not in "iu":
            raise InvalidArgumentError(f"tf.bitwise.{op} needs integers, got {array.dtype.name}.")
    return arrays


def bitwise_and(x: ArrayLike, y: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the bitwise AND.

    >>> bitwise_and([6], [3])
    Array([2], dtype=int32)
    """
    return jnp.bitwise_and(*_integers("bitwise_and", x, y))


def bitwise_or(x: ArrayLike, y: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the bitwise OR.

    >>> bitwise_or([6], [3])
    Array([7], dtype=int32)
    """
    return jnp.bitwise_or(*_integers("bitwise_or", x, y))


def bitwise_xor(x: ArrayLike, y: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the bitwise XOR.

    >>> bitwise_xor([6], [3])
    Array([5], dtype=int32)
    """
    return jnp.bitwise_xor(*_integers("bitwise_xor", x, y))


def invert(x: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the bitwise NOT.

    >>> invert([6])
    Array([-7], dtype=int32)
    """
    return jnp.bitwise_not(_integers("invert", as_tensor(x))[0])


def left_shift(x: ArrayLike, y: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns ``x`` shifted left by ``y`` bits.

    >>> left_shift([6], [1])
    Array([12], dtype=int32)
    """
    first, places = _integers("left_shift", x, y)
    return jnp.left_shift(first, _within(first, places))


def right_shift(x: ArrayLike, y: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns ``x`` shifted right by ``y`` bits; signed integers keep their sign.

    >>> right_shift([-6], [1])
    Array([-3], dtype=int32)
    """
    first, places = _integers("right_shift", x, y)
    return jnp.right_shift(first, _within(first, places))


def _within(array: Tensor, places: Tensor) -> Tensor:
    # TensorFlow on CPUs clamps the shift to the number of bits.
    return jnp.clip(places, 0, array.dtype.itemsize * 8 - 1)
