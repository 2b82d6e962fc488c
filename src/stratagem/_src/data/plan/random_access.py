"""``RandomAccess``: tables whose elements are read by index."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from stratagem._src.core.types import PyTree
from stratagem._src.data.plan.aligned_arrays import take_rows
from stratagem._src.data.plan.rows import row
from stratagem._src.data.structure import flatten, map_structure, pack_like

__all__ = ["ArrayAccess", "ConcatAccess", "Indices", "RandomAccess"]

Indices = np.ndarray[Any, np.dtype[np.int64]]


class RandomAccess(ABC):
    """A table of elements; reading it has no side effects.

    Attributes:
        read_ahead: Whether the user requested its elements to be computed in parallel.
    """

    read_ahead: bool = False

    @abstractmethod
    def __len__(self) -> int:
        """Returns the number of elements."""

    @abstractmethod
    def gather(self, indices: Indices) -> Any:
        """Returns the elements at ``indices``, a vector, as rows."""

    def element(self, index: int) -> Any:
        """Returns one element."""
        return row(self.gather(np.array([index])), 0)


class ArrayAccess(RandomAccess):
    """The rows of a nest of arrays with the same leading dimension."""

    def __init__(self, arrays: PyTree, length: int) -> None:
        self._arrays = arrays
        self._length = length

    def __len__(self) -> int:
        return self._length

    def gather(self, indices: Indices) -> Any:
        """Gathers from each array."""
        return map_structure(lambda array: take_rows(array, indices), self._arrays)

    def element(self, index: int) -> Any:
        """Returns a copy of one row."""
        return row(self._arrays, index)


class ConcatAccess(RandomAccess):
    """Tables of the same structure, shapes and types, one after the other."""

    def __init__(self, tables: list[RandomAccess]) -> None:
        self._tables = tables
        self._ends = np.cumsum([len(table) for table in tables])
        self.read_ahead = any(table.read_ahead for table in tables)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def gather(self, indices: Indices) -> Any:
        """Gathers from each table and scatters the rows to their positions."""
        owners = np.searchsorted(self._ends, indices, side="right")
        nest: Any = None
        results: list[Any] = []
        for owner in np.unique(owners):
            places = np.flatnonzero(owners == owner)
            table = self._tables[owner]
            rows = table.gather(indices[places] - (self._ends[owner] - len(table)))
            if len(places) == len(indices):
                return rows
            if not results:
                nest = rows
                results = [
                    np.empty((len(indices), *leaf.shape[1:]), leaf.dtype) for leaf in flatten(rows)
                ]
            for result, leaf in zip(results, flatten(rows), strict=True):
                result[places] = leaf
        return pack_like(nest, results)
