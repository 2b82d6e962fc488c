"""64-bit integers of a checkpoint for 32-bit variables: TensorFlow counts in 64 bits, JAX in 32."""

from __future__ import annotations

from typing import Any

import numpy as np

from stratagem._src.checkpoint.format.saved_state import SavedArray
from stratagem._src.core.errors import InvalidArgumentError

__all__ = ["narrow", "narrowed_array"]

Array = np.ndarray[Any, Any]


def narrowed_array(saved: SavedArray, dtype: np.dtype[Any], name: str) -> SavedArray:
    """Returns a saved array that gives 32-bit integers, if it has 64 bits and they are wanted.

    Args:
        saved: The array.
        dtype: The element type that is wanted.
        name: Its name, for the error when its values do not fit.
    """
    return _Narrowed(saved, dtype, name) if _is_narrower(saved.dtype, dtype) else saved


def narrow(array: Array, dtype: np.dtype[Any], name: str) -> Array:
    """Returns an array with 32-bit integers, if it has 64 bits and they are wanted.

    Raises:
        InvalidArgumentError: If a value does not fit.
    """
    if not _is_narrower(array.dtype, dtype):
        return array
    limits = np.iinfo(dtype)
    if array.size and not limits.min <= array.min() <= array.max() <= limits.max:
        raise InvalidArgumentError(
            f"{name!r} has values of {array.dtype.name} in the checkpoint that {dtype.name} cannot hold. "
            "Enable 64-bit mode with jax.config.update('jax_enable_x64', True)."
        )
    return array.astype(dtype)


def _is_narrower(saved: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    return (
        saved.kind == wanted.kind
        and saved.kind in "iu"
        and (saved.itemsize, wanted.itemsize) == (8, 4)
    )


class _Narrowed:
    """See ``SavedArray``."""

    def __init__(self, saved: SavedArray, dtype: np.dtype[Any], name: str) -> None:
        self._saved, self._name = saved, name
        self.shape, self.dtype = saved.shape, dtype

    def start_read(self) -> None:
        """Begins to read all of it."""
        self._saved.start_read()

    def read(self) -> Array:
        """Returns the array."""
        return narrow(self._saved.read(), self.dtype, self._name)

    def rows(self, begin: int, end: int) -> Array:
        """Returns consecutive rows."""
        return narrow(self._saved.rows(begin, end), self.dtype, self._name)

    def verify(self, begin: int = 0, end: int = -1) -> None:
        """Checks all of it, that the values fit too."""
        self._saved.verify(begin, end)
        self.rows(begin, end)
