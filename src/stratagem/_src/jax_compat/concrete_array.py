"""The type of concrete arrays, and fast access to their attributes, for code that runs in every step.

The public attributes are Python properties, and take three times as long as the private attributes behind
them; ``isinstance`` takes five times as long as a comparison of types.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.core.types import Tensor

__all__ = [
    "ConcreteArray",
    "committed_attribute",
    "is_on_one_device",
    "sharding_attribute",
    "uncommitted",
]

try:
    from jax._src.array import ArrayImpl

    ConcreteArray: type[Any] = ArrayImpl
except (ImportError, AttributeError):
    # No array has exactly this type, so callers take the way for arrays that they do not know.
    ConcreteArray = jax.Array


def is_on_one_device(value: Tensor) -> bool:
    """Returns whether ``value`` is a concrete array on a single device."""
    return type(value) is ConcreteArray and len(value.sharding.device_set) == 1


def uncommitted(value: Tensor) -> Tensor:
    """Returns an array for the same memory, on one device, that JAX may move to other arrays' devices."""
    if not value.committed:
        return value
    own = value.addressable_data(0)
    try:
        return ConcreteArray(own.aval, own.sharding, own._arrays, committed=False)
    except (AttributeError, TypeError):
        return jnp.asarray(np.asarray(own))  # waits until it is computed


def committed_attribute(array_type: type) -> str:
    """Returns the name of the attribute that says whether an array is committed to its devices."""
    return _fast_attribute("committed", array_type)


def sharding_attribute(array_type: type) -> str:
    """Returns the name of the attribute that holds an array's sharding."""
    return _fast_attribute("sharding", array_type)


def _fast_attribute(name: str, array_type: type) -> str:
    private = f"_{name}"
    return private if array_type is ConcreteArray and hasattr(array_type, private) else name
