"""The few array functions that specification snippets use; for the rest there is ``jax.numpy``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from stratagem._src.values.array_operators import operand_of

__all__ = ["constant", "identity"]


def constant(value: Any, dtype: Any = None, shape: Sequence[int] | None = None) -> jax.Array:
    """Returns an array of ``value``, filled up to ``shape`` if it is a scalar.

    JAX equivalent: ``jax.numpy.asarray``.

    >>> constant([[1], [2]]).shape
    (2, 1)
    """
    array = jnp.asarray(operand_of(value), dtype)
    if shape is None:
        return array
    return jnp.full(shape, array) if array.ndim == 0 else array.reshape(shape)


def identity(value: Any) -> jax.Array:
    """Returns the value of an array or variable, as an array of its own.

    >>> identity(3.0)
    Array(3., dtype=float32, weak_type=True)
    """
    return jnp.array(operand_of(value))
