"""Adds ``.numpy()`` to JAX arrays, which programs written for TensorFlow call on every result."""

from __future__ import annotations

from typing import Any, NoReturn

import jax
import numpy as np

from stratagem._src.core.errors import TracedValueError

__all__ = ["give_arrays_a_numpy_method"]


def give_arrays_a_numpy_method() -> bool:
    """Adds the method to the class of JAX arrays, unless they have it; returns whether they have it now.

    JAX has no way to register methods, and an array class of our own would be slower in every operation. If
    the class moves or is closed in a later JAX, arrays have no such method: ``numpy.asarray(x)`` does the
    same. A tracer gets a method that raises an error with the reason.
    """
    try:
        from jax._src.array import ArrayImpl

        if not hasattr(ArrayImpl, "numpy"):
            ArrayImpl.numpy = _numpy  # type: ignore[attr-defined]
            jax.core.Tracer.numpy = _refuse  # type: ignore[attr-defined]
    except (ImportError, AttributeError, TypeError):
        return False
    return True


def _numpy(self: Any) -> Any:
    """Returns a copy of the array as a NumPy array, or as a NumPy scalar if it has no dimensions."""
    return np.array(self)[()]


def _refuse(self: Any) -> NoReturn:
    """Raises an error, because a tracer has no value."""
    raise TracedValueError(
        f"numpy() needs the value of an array, but {self!r} is only traced: it gets its value when the "
        "compiled function runs. Return it and call numpy() outside, print it with jax.debug.print, or use "
        "jax.numpy instead of NumPy."
    )
