"""Adds ``.numpy()``, ``.get_shape()`` and ``.set_shape()`` to JAX arrays, as TensorFlow has them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

import jax
import numpy as np

from stratagem._src.core.errors import TracedValueError
from stratagem._src.core.tensor_shape import TensorShape

__all__ = ["get_shape", "give_arrays_a_numpy_method", "set_shape"]


def give_arrays_a_numpy_method() -> bool:
    """Adds the methods to the class of JAX arrays, unless they have it; returns whether they have it now.

    JAX has no way to register methods, and an array class of our own would be slower in every operation. If
    the class moves or is closed in a later JAX, arrays have no such methods: ``numpy.asarray(x)`` does the
    same. A tracer gets a ``numpy()`` that raises an error with the reason.
    """
    try:
        from jax._src.array import ArrayImpl

        if not hasattr(ArrayImpl, "numpy"):
            ArrayImpl.numpy = _numpy  # type: ignore[attr-defined]
            jax.core.Tracer.numpy = _refuse  # type: ignore[attr-defined]
            classes: tuple[Any, ...] = (ArrayImpl, jax.core.Tracer)
            for arrays in classes:
                arrays.get_shape, arrays.set_shape = get_shape, set_shape
    except (ImportError, AttributeError, TypeError):
        return False
    return True


def _numpy(self: Any) -> Any:
    """Returns a copy of the array as a NumPy array, or as a NumPy scalar if it has no dimensions."""
    return np.array(self)[()]


def get_shape(self: Any) -> TensorShape:
    """Returns the shape with ``as_list()`` and the other methods of TensorFlow's shapes."""
    return TensorShape(size if isinstance(size, int) else None for size in self.shape)


def set_shape(self: Any, shape: Iterable[int | None] | None) -> None:
    """Checks a shape; that of an array is always known.

    Raises:
        ValueError: If the array has another one.
    """
    if not get_shape(self).is_compatible_with(shape):
        raise ValueError(f"set_shape got {tuple(shape or ())} for an array of shape {self.shape}.")


def _refuse(self: Any) -> NoReturn:
    """Raises an error, because a tracer has no value."""
    raise TracedValueError(
        f"numpy() needs the value of an array, but {self!r} is only traced: it gets its value when the "
        "compiled function runs. Return it and call numpy() outside, print it with jax.debug.print, or use "
        "jax.numpy instead of NumPy."
    )
