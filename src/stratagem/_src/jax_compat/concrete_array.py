"""The type of arrays that are no tracers, for callers that ask between any two steps.

The public attributes are properties in Python, and take three times as long as those behind them;
``isinstance`` takes five times as long as a comparison of types.
"""

from __future__ import annotations

from typing import Any

from jax._src.array import ArrayImpl

__all__ = ["ConcreteArray", "committed_attribute", "is_on_one_device", "sharding_attribute"]

ConcreteArray: type[Any] = ArrayImpl


def is_on_one_device(value: Any) -> bool:
    """Returns whether ``value`` is an array, no tracer, and on a single device."""
    return type(value) is ConcreteArray and len(value.sharding.device_set) == 1


def committed_attribute(array_type: type) -> str:
    """Returns the name of the attribute that says whether an array was put where it lies."""
    return _quicker("committed", array_type)


def sharding_attribute(array_type: type) -> str:
    """Returns the name of the attribute that holds an array's sharding."""
    return _quicker("sharding", array_type)


def _quicker(name: str, array_type: type) -> str:
    private = f"_{name}"
    return private if array_type is ConcreteArray and hasattr(array_type, private) else name
