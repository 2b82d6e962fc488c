"""In-place ``scatter_*`` updates of an array's rows, with duplicate indices combined first."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["ROW_UPDATES", "Rows", "combine_duplicates", "drop_out_of_range", "update_rows"]

Array = np.ndarray[Any, Any]
Rows = tuple[Array, Array]
"""Indices, and the rows that belong there."""

# For each update: the ufunc that combines two operands of the same row, and the ufunc that applies the
# combined operand to the row.
ROW_UPDATES: dict[str, tuple[np.ufunc, np.ufunc]] = {
    "scatter_add": (np.add, np.add),
    "scatter_sub": (np.add, np.subtract),
    "scatter_mul": (np.multiply, np.multiply),
    "scatter_div": (np.multiply, np.true_divide),
    "scatter_min": (np.minimum, np.minimum),
    "scatter_max": (np.maximum, np.maximum),
}

_MAX_VECTORIZED_DUPLICATES = 8


def drop_out_of_range(indices: Array, rows: Array, num_rows: int) -> Rows:
    """Returns only the rows whose index is in range; compiled programs pad with indices out of range."""
    if indices.size == 0 or (indices.min() >= 0 and indices.max() < num_rows):
        return indices, rows
    inside = (indices >= 0) & (indices < num_rows)
    return indices[inside], rows[inside]


def combine_duplicates(indices: Array, rows: Array, combine: np.ufunc = np.add) -> Rows:
    """Returns each index once, with its rows combined.

    >>> combine_duplicates(np.array([2, 0, 2]), np.array([[1.0], [2.0], [3.0]]))
    (array([0, 2]), array([[2.],
           [4.]]))
    """
    if indices.size < 2:
        return indices, rows
    order = np.argsort(indices, kind="stable")
    in_order = indices[order]
    starts = np.flatnonzero(np.concatenate(([True], in_order[1:] != in_order[:-1])))
    if starts.size == indices.size:
        return indices, rows
    counts = np.diff(starts, append=indices.size)
    combined = rows[order[starts]]
    # Many times faster than ufunc.reduceat and ufunc.at, which work element by element here: combine all
    # second occurrences at once, then all third ones, and so on; then frequent indices one at a time.
    for occurrence in range(1, min(_MAX_VECTORIZED_DUPLICATES, int(counts.max()))):
        several = np.flatnonzero(counts > occurrence)
        more = rows[order[starts[several] + occurrence]]
        combined[several] = combine(combined[several], more)
    for frequent in np.flatnonzero(counts > _MAX_VECTORIZED_DUPLICATES):
        rest = order[
            starts[frequent] + _MAX_VECTORIZED_DUPLICATES : starts[frequent] + counts[frequent]
        ]
        combined[frequent] = combine(combined[frequent], combine.reduce(rows[rest], axis=0))
    return in_order[starts], combined


def update_rows(array: Array, update: str, indices: Array, rows: Array) -> None:
    """Applies a ``scatter_*`` update to ``array`` in place; ignores indices out of range."""
    indices, rows = drop_out_of_range(indices, rows, len(array))
    if update == "scatter_update":
        array[indices] = rows
        return
    combine, change = ROW_UPDATES[update]
    indices, rows = combine_duplicates(indices, rows, combine)
    # With mode="clip" NumPy does not gather into a temporary buffer first.
    before = np.take(array, indices, axis=0, mode="clip")
    array[indices] = change(before, rows).astype(array.dtype, copy=False)
