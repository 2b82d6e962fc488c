"""Allocates rows at aligned addresses: on CPU JAX aliases an aligned array, and copies any other."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

__all__ = ["copy_of", "take_rows"]

_ALIGNMENT = 64
_MIN_ALIGNED_BYTES = 1 << 18
"""Smaller arrays are not aligned: the copy that alignment saves is too cheap."""

_Array = np.ndarray[Any, Any]


def take_rows(array: _Array, indices: _Array) -> _Array:
    """Returns the rows at ``indices``, which must be in range."""
    if _is_small(array, len(indices) * (array.nbytes // max(len(array), 1))):
        return array.take(indices, axis=0)
    rows = _empty((len(indices), *array.shape[1:]), array.dtype)
    # With mode="raise" NumPy buffers the output, so that a bad index leaves ``out`` unchanged.
    return array.take(indices, axis=0, out=rows, mode="clip")


def copy_of(array: _Array) -> _Array:
    """Returns a copy."""
    if _is_small(array, array.nbytes):
        return array.copy()
    copy = _empty(array.shape, array.dtype)
    copy[...] = array
    return copy


def _is_small(array: _Array, num_bytes: int) -> bool:
    return num_bytes < _MIN_ALIGNED_BYTES or array.dtype.hasobject


def _empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> _Array:
    num_bytes = math.prod(shape) * dtype.itemsize
    memory = np.empty(num_bytes + _ALIGNMENT, np.uint8)
    start = -memory.__array_interface__["data"][0] % _ALIGNMENT
    return memory[start : start + num_bytes].view(dtype).reshape(shape)
