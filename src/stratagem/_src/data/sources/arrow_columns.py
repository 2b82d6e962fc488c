"""Converts Arrow columns to NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.data.tensor_spec import STRING

__all__ = ["columns_of"]


def columns_of(batch: Any, path: str, first_row: int) -> dict[str, np.ndarray[Any, Any]]:
    """Returns the columns of a record batch as arrays.

    Raises:
        InvalidArgumentError: If a column contains nulls, or its type has no array equivalent.
    """
    return {
        name: _array_of(batch.column(position), f"{path}: column {name!r}", first_row)
        for position, name in enumerate(batch.schema.names)
    }


def _array_of(column: Any, where: str, first_row: int) -> np.ndarray[Any, Any]:
    import pyarrow as pa

    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.dictionary_decode()
        kind = column.type
    if column.null_count and not pa.types.is_floating(kind):
        number = first_row + int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
        raise InvalidArgumentError(
            f"{where}: row {number} is null. Fill in missing values when writing the file, or "
            "leave the column out with columns=."
        )
    if pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _lists(column, where, first_row)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        column = column.cast(pa.large_binary())
        kind = column.type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        strings = np.empty(len(column), STRING)
        strings[:] = column.to_pylist()
        return strings
    array = np.asarray(column.to_numpy(zero_copy_only=False))
    if array.dtype == object:
        raise InvalidArgumentError(
            f"{where}: the type {kind} is neither a number, a string nor a list of numbers. "
            "Leave it out with columns=."
        )
    return array


def _lists(column: Any, where: str, first_row: int) -> np.ndarray[Any, Any]:
    values = _array_of(column.flatten(), where, first_row)
    if hasattr(column.type, "list_size"):
        size = column.type.list_size
    else:
        sizes = column.value_lengths().to_numpy(zero_copy_only=False)
        size = int(sizes[0]) if len(sizes) else 0
        if np.any(sizes != size):
            number = first_row + int(np.argmax(sizes != size))
            raise InvalidArgumentError(
                f"{where}: lists must have the same length, got {size} and, in row {number}, "
                f"{int(sizes[number - first_row])}."
            )
    return values.reshape(len(column), size, *values.shape[1:])
