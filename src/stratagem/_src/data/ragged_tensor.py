"""``RaggedTensor``: rows of different lengths in one array, as ``ragged_batch`` makes them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from stratagem._src.core.errors import InvalidArgumentError

__all__ = ["RaggedTensor"]


@dataclass(frozen=True, eq=False)
class RaggedTensor:
    """Rows of different lengths: all their values one after the other, and where each row begins.

    It is a structure of arrays, like a tuple, wherever structures are taken: in elements, as argument
    of ``run`` and ``sg.function``, in files. In an ``element_spec`` it holds specs instead of arrays.
    Its number of values changes from batch to batch, and with it the program of a compiled step; a
    ``padded_batch`` or ``bucket_by_sequence_length`` has few different shapes.

    Differs from tf.data: it has no operators. Compute with ``flat_values``, and with ``row_splits`` or
    ``value_rowids()`` say which row each belongs to, as ``jax.ops.segment_sum`` takes them.

    >>> from stratagem.data import Dataset
    >>> dataset = Dataset.range(1, 4).map(lambda n: [int(n)] * int(n))
    >>> ragged = next(iter(dataset.ragged_batch(3)))
    >>> ragged.to_list()
    [[1], [2, 2], [3, 3, 3]]
    >>> ragged.flat_values.tolist(), ragged.row_splits.tolist()
    ([1, 2, 2, 3, 3, 3], [0, 1, 3, 6])

    Attributes:
        flat_values: The values of all rows, innermost first.
        nested_row_splits: For each ragged dimension, outermost first, where its rows begin, and the
            end of the last.
    """

    flat_values: Any
    nested_row_splits: tuple[Any, ...]

    def __tf_flatten__(self) -> tuple[Any, Any]:
        """Returns what is not an array, and the arrays."""
        return len(self.nested_row_splits), (self.flat_values, *self.nested_row_splits)

    @classmethod
    def __tf_unflatten__(cls, metadata: Any, components: Any) -> Self:
        """Returns the value of these arrays."""
        flat_values, *nested_row_splits = components
        return cls(flat_values, tuple(nested_row_splits))

    @classmethod
    def from_rows(cls, rows: list[Any], ragged_rank: int = 1, row_splits_dtype: Any = None) -> Self:
        """Returns arrays of one rank and type as the rows of one value.

        Args:
            rows: The arrays.
            ragged_rank: How many of the dimensions, counting that of the rows, have rows of their own;
                the dimensions behind them have one size.
            row_splits_dtype: int64 by default, or int32.

        Raises:
            InvalidArgumentError: If the arrays do not fit together.
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
        """Where the outermost rows begin, and the end of the last."""
        return self.nested_row_splits[0]

    @property
    def values(self) -> Any:
        """The outermost rows one after the other: an array, or ragged itself."""
        if len(self.nested_row_splits) == 1:
            return self.flat_values
        return type(self)(self.flat_values, self.nested_row_splits[1:])

    @property
    def ragged_rank(self) -> int:
        """How many dimensions have rows of different lengths."""
        return len(self.nested_row_splits)

    @property
    def dtype(self) -> Any:
        """The type of the values."""
        return self.flat_values.dtype

    def nrows(self) -> int:
        """Returns the number of outermost rows."""
        return int(self.row_splits.shape[0]) - 1

    def row_lengths(self) -> Any:
        """Returns the lengths of the outermost rows."""
        return self.row_splits[1:] - self.row_splits[:-1]

    def value_rowids(self) -> Any:
        """Returns for each of ``values`` the number of its row."""
        return np.repeat(np.arange(self.nrows()), self.row_lengths())

    def without_rows(self) -> RaggedTensor:
        """Returns a value of the same kind that has no rows."""
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


def _cut(flat_values: Any, splits: list[Any], start: int, stop: int) -> RaggedTensor:
    kept = []
    for level in splits:
        part = level[start : stop + 1]
        start, stop = int(part[0]), int(part[-1])
        kept.append(part - part[0])
    return RaggedTensor(flat_values[start:stop], tuple(kept))
