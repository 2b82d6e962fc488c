"""Converts user input (lists, scalars, strings, JAX arrays) to the leaves of an element.

Python floats become float32 and Python ints int32, as in TensorFlow; arrays keep their type.
Strings become ``bytes``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.masked_arrays import check_not_masked
from stratagem._src.core.owned_memory import OwnedResults, owned
from stratagem._src.core.types import ArrayLike, PyTree
from stratagem._src.data.dataset_base import DatasetBase
from stratagem._src.data.plan.aligned_arrays import copy_of
from stratagem._src.data.structure import flatten, map_structure
from stratagem._src.data.tensor_spec import STRING

__all__ = ["owned_array", "owned_results", "to_array", "to_element", "to_leaf"]


def to_array(value: ArrayLike) -> np.ndarray[Any, Any]:
    """Returns ``value`` as one array. It may be a view of a NumPy array, and owns its memory otherwise.

    Raises:
        InvalidArgumentError: If it is ragged, masked, or contains anything but numbers and strings.
    """
    from_python = not hasattr(value, "dtype")
    if isinstance(value, bytes | str):
        array = _string_array(value)
    elif isinstance(value, np.ndarray):
        check_not_masked(value)
        array = np.asarray(value)
    elif not from_python:
        array = owned(np.asarray(value), copy_of)
    else:
        array = _from_sequence(value)
    if array.dtype.kind in "SUO":
        return _as_bytes(array)
    if from_python and not _holds_typed_items(value):
        array = _to_32_bit(array)
    return array


def owned_array(value: ArrayLike) -> np.ndarray[Any, Any]:
    """Returns ``value`` as one array that the caller cannot write to afterwards.

    Raises:
        InvalidArgumentError: If it is ragged, or contains anything but numbers and strings.
    """
    array = to_array(value)
    return owned(array, copy_of) if isinstance(value, np.ndarray) else array


owned_results = OwnedResults(flatten, map_structure, copy_of)
"""Takes elements from user functions, which may return a buffer that they reuse."""


def to_leaf(value: ArrayLike) -> Any:
    """Returns ``value`` as an array, a NumPy scalar or ``bytes``: the leaf of an element.

    A dataset is a leaf and stays as it is.
    """
    if isinstance(value, bytes | np.generic) and not isinstance(value, np.bytes_ | np.str_):
        return value
    if type(value) is np.ndarray and value.ndim and value.dtype.kind not in "SUO":
        return value
    if isinstance(value, DatasetBase):
        return value
    array = to_array(value)
    return array[()] if array.ndim == 0 else array


def to_element(nest: PyTree) -> Any:
    """Returns a nest of arrays with every leaf converted; a list is one array."""
    return map_structure(to_leaf, nest)


def _from_sequence(value: ArrayLike) -> np.ndarray[Any, Any]:
    if value is None or isinstance(value, Mapping | set):
        raise InvalidArgumentError(
            f"An element must be made of arrays, numbers and strings, got {value!r}."
        )
    try:
        array = np.asarray(value)
        if not isinstance(value, list | tuple):
            array = owned(array)  # for example the memory of a memoryview
    except ValueError as error:
        raise InvalidArgumentError(
            f"A list becomes one array, so its items must have the same shape: {error} "
            "Use a tuple for components of different shapes, or from_generator."
        ) from error
    if array.dtype.kind in "SU":
        # np.asarray would pad strings and lose their trailing NULs.
        array = np.asarray(value, dtype=object)
    return array


def _string_array(value: bytes | str) -> np.ndarray[Any, Any]:
    array = np.empty((), STRING)
    array[()] = value
    return array


def _as_bytes(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if array.dtype == STRING and all(type(item) is bytes for item in array.flat):
        return array
    result = np.empty(array.shape, STRING)
    flat = result.reshape(-1)
    for position, item in enumerate(array.flat):
        if isinstance(item, str):
            flat[position] = item.encode()
        elif isinstance(item, bytes):
            flat[position] = bytes(item)
        else:
            raise InvalidArgumentError(
                "An element must be made of arrays, numbers and strings, got an item of type "
                f"{type(item).__name__}: {item!r}."
            )
    return result


def _holds_typed_items(value: ArrayLike) -> bool:
    while isinstance(value, list | tuple) and value:
        value = value[0]
    return hasattr(value, "dtype")


def _to_32_bit(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if array.dtype == np.float64:
        return array.astype(np.float32)
    if array.dtype == np.complex128:
        return array.astype(np.complex64)
    if array.dtype == np.int64 or array.dtype == np.uint64:
        bounds = np.iinfo(np.int32)
        if array.size and (array.min() < bounds.min or array.max() > bounds.max):
            return array
        return array.astype(np.int32)
    return array
