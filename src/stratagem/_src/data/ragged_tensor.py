"""``RaggedTensor``: rows of different lengths in one array, as ``ragged_batch`` makes them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import ArrayLike, DTypeLike, PyTree, StaticValue

__all__ = ["RaggedTensor"]


@dataclass(frozen=True, eq=False)
class RaggedTensor:
    """Rows of different lengths, stored as their concatenated values and the offsets of the rows.

    It is a structure of arrays, like a tuple, wherever structures are accepted: in elements, as an argument
    of ``run`` and ``sg.function``, in saved datasets. In an ``element_spec`` it holds specs instead of
    arrays. The number of values changes from batch to batch, so a compiled step is retraced for each new
    size; ``padded_batch`` and ``bucket_by_sequence_length`` have few different shapes.

    Differs from tf.data: it has no operators. Compute with ``flat_values``, and use ``row_splits`` or
    ``value_rowids()`` as segment ids, for example in ``jax.ops.segment_sum``.

    >>> from stratagem.data import Dataset
    >>> dataset = Dataset.range(1, 4).map(lambda n: [int(n)] * int(n))
    >>> ragged = next(iter(dataset.ragged_batch(3)))
    >>> ragged.to_list()
    [[1], [2, 2], [3, 3, 3]]
    >>> ragged.flat_values.tolist(), ragged.row_splits.tolist()
    ([1, 2, 2, 3, 3, 3], [0, 1, 3, 6])

    Attributes:
        flat_values: The concatenated values of all rows.
        nested_row_splits: For each ragged dimension, outermost first, the offsets of its rows and the end
            of the last one.
    """

    flat_values: Any
    nested_row_splits: tuple[Any, ...]

    def __tf_flatten__(self) -> tuple[Any, Any]:
        """Returns the metadata and the arrays."""
        return len(self.nested_row_splits), (self.flat_values, *self.nested_row_splits)

    @classmethod
    def __tf_unflatten__(cls, metadata: StaticValue, components: PyTree) -> Self:
        """Returns the ragged tensor with these arrays."""
        flat_values, *nested_row_splits = components
        return cls(flat_values, tuple(nested_row_splits))

    @classmethod
    def from_rows(
        cls, rows: list[Any], ragged_rank: int = 1, row_splits_dtype: DTypeLike = None
    ) -> Self:
        """Returns a ragged tensor with the given arrays, of one rank and dtype, as its rows.

        Args:
            rows: The arrays.
            ragged_rank: The number of ragged dimensions, counting the rows themselves; the dimensions
                after them have a fixed size.
            row_splits_dtype: int64 by default, or int32.

        Raises:
            InvalidArgumentError: If the ranks, dtypes or fixed sizes differ.
        """
        dtype = np.dtype(np.int64 if row_splits_dtype is None else row_splits_dtype)
        if dtype not in (np.int32, np.int64):
            raise InvalidArgumentError(
                f"row_splits_dtype must be int32 or int64, got {row_splits_dtype!r}."
            )
        arrays = [np.asarray(row) for row in rows]
        kinds = {(array.ndim, array.dtype, array.shape[ragged_rank:]) for array in arrays}
        if len(kinds) != 1 or arrays[0].ndim < ragged_rank:
            raise InvalidArgumentError(
                f"Rows must have the same rank and type, and the same size from dimension "
                f"{ragged_rank} on, got {[(a.dtype.name, a.shape) for a in arrays]}."
            )
        parts = [
            array.reshape(int(np.prod(array.shape[:ragged_rank])), *array.shape[ragged_rank:])
            for array in arrays
        ]
        splits = []
        for axis in range(ragged_rank):
            lengths = [
                np.full(int(np.prod(array.shape[:axis])), array.shape[axis]) for array in arrays
            ]
            splits.append(np.cumsum([0, *np.concatenate(lengths).tolist()]).astype(dtype))
        return cls(np.concatenate(parts), tuple(splits))

    @property
    def row_splits(self) -> Any:
        """The offsets of the outermost rows, and the end of the last one."""
        return self.nested_row_splits[0]

    @property
    def values(self) -> Any:
        """The concatenated outermost rows: an array, or another ragged tensor."""
        if len(self.nested_row_splits) == 1:
            return self.flat_values
        return type(self)(self.flat_values, self.nested_row_splits[1:])

    @property
    def ragged_rank(self) -> int:
        """The number of ragged dimensions."""
        return len(self.nested_row_splits)

    @property
    def dtype(self) -> Any:
        """The dtype of the values."""
        return self.flat_values.dtype

    def nrows(self) -> int:
        """Returns the number of outermost rows."""
        return int(self.row_splits.shape[0]) - 1

    def row_lengths(self) -> Any:
        """Returns the lengths of the outermost rows."""
        return self.row_splits[1:] - self.row_splits[:-1]

    def value_rowids(self) -> Any:
        """Returns the row index of each of ``values``."""
        return np.repeat(np.arange(self.nrows()), self.row_lengths())

    def without_rows(self) -> RaggedTensor:
        """Returns a ragged tensor with the same dtype and ranks, and no rows."""
        return type(self)(self.flat_values[:0], tuple(s[:1] * 0 for s in self.nested_row_splits))

    def __len__(self) -> int:
        return self.nrows()

    def __getitem__(self, index: int) -> Any:
        if not -len(self) <= index < len(self):
            raise IndexError(f"There are {len(self)} rows, got the index {index}.")
        row = index % len(self)
        start, stop = int(self.row_splits[row]), int(self.row_splits[row + 1])
        values = self.values
        if not isinstance(values, RaggedTensor):
            return values[start:stop]
        outer, *inner = values.nested_row_splits
        return _cut(self.flat_values, [outer, *inner], start, stop)

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))

    def to_list(self) -> list[Any]:
        """Returns the rows as nested lists."""
        return [row.to_list() if isinstance(row, RaggedTensor) else row.tolist() for row in self]


def _cut(flat_values: ArrayLike, splits: list[Any], start: int, stop: int) -> RaggedTensor:
    kept = []
    for level in splits:
        part = level[start : stop + 1]
        start, stop = int(part[0]), int(part[-1])
        kept.append(part - part[0])
    return RaggedTensor(flat_values[start:stop], tuple(kept))
