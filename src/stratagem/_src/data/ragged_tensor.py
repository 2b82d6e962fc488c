"""``tf.RaggedTensor``: rows of different lengths in one array, as ``ragged_batch`` makes them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import ArrayLike, DTypeLike, PyTree, ScalarLike, StaticValue
from stratagem._src.data.conversion import to_array

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

    @classmethod
    def from_row_splits(
        cls, values: PyTree, row_splits: ArrayLike, name: str | None = None, validate: bool = True
    ) -> Self:
        """Returns rows of ``values``, an array or a ragged tensor, with these offsets and end.

        >>> RaggedTensor.from_row_splits([1, 2, 3], [0, 2, 2, 3]).to_list()
        [[1, 2], [], [3]]
        """
        splits = np.asarray(row_splits)
        splits = splits.astype(_offsets(splits))
        inner = values.nested_row_splits if isinstance(values, RaggedTensor) else ()
        flat = values.flat_values if isinstance(values, RaggedTensor) else _array(values)
        count = len(values) if inner else len(flat)
        if (
            splits.ndim != 1
            or [*splits[:1], *splits[-1:]] != [0, count]
            or (np.diff(splits) < 0).any()
        ):
            raise InvalidArgumentError(
                "Offsets of rows must begin with 0, not decrease, and end with the number of values, "
                f"{count}; got {splits.tolist()}."
            )
        return cls(flat, (splits, *inner))

    @classmethod
    def from_row_lengths(
        cls, values: PyTree, row_lengths: ArrayLike, name: str | None = None, validate: bool = True
    ) -> Self:
        """Returns rows of ``values`` of these lengths.

        >>> RaggedTensor.from_row_lengths([1, 2, 3], [2, 0, 1]).to_list()
        [[1, 2], [], [3]]
        """
        lengths = np.asarray(row_lengths)
        return cls.from_row_splits(
            values, np.cumsum([0, *lengths.tolist()], dtype=_offsets(lengths))
        )

    @classmethod
    def from_tensor(
        cls, tensor: ArrayLike, lengths: ArrayLike = None, padding: ScalarLike = None
    ) -> Self:
        """Returns the rows of an array, each cut to its length, or where only ``padding`` follows.

        >>> RaggedTensor.from_tensor([[1, 0], [2, 3]], padding=0).to_list()
        [[1], [2, 3]]
        """
        array = _array(tensor)
        if lengths is None:
            lengths = np.full(len(array), array.shape[1])
            if padding is not None:
                filling = padding.encode() if isinstance(padding, str) else padding
                is_value = (array != filling).reshape(*array.shape[:2], -1).any(axis=2)
                lengths = np.where(is_value, np.arange(1, array.shape[1] + 1), 0).max(1, initial=0)
        kept = np.asarray(lengths)
        return cls.from_row_lengths(array[np.arange(array.shape[1]) < kept[:, None]], kept)

    def to_tensor(
        self, default_value: ScalarLike = None, name: str | None = None, shape: Any = None
    ) -> np.ndarray[Any, Any]:
        """Returns an array of the rows, padded with ``default_value``, and padded or cut to ``shape``.

        >>> RaggedTensor.from_row_lengths([1, 2, 3], [2, 1]).to_tensor(-1).tolist()
        [[1, 2], [3, -1]]
        """
        if default_value is None:
            default_value = b"" if self.dtype == np.dtype(object) else 0
        filling = default_value.encode() if isinstance(default_value, str) else default_value
        sizes = [*self._bounding_shape()]
        for axis, size in enumerate(() if shape is None else shape):
            sizes[axis] = sizes[axis] if size is None else int(size)
        padded = np.full(sizes, filling, np.asarray(self.flat_values).dtype)
        for into, row in zip(padded, self, strict=False):
            dense = row.to_tensor(filling) if isinstance(row, RaggedTensor) else np.asarray(row)
            inside = tuple(slice(min(pair)) for pair in zip(into.shape, dense.shape, strict=True))
            into[inside] = dense[inside]
        return padded

    def _bounding_shape(self) -> tuple[int, ...]:
        longest = max(self.row_lengths().tolist(), default=0)
        values = self.values
        if not isinstance(values, RaggedTensor):
            return (len(self), longest, *values.shape[1:])
        return (len(self), longest, *values._bounding_shape()[1:])

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


def _offsets(lengths: np.ndarray[Any, Any]) -> type:
    return np.int32 if lengths.dtype == np.int32 else np.int64


def _array(values: ArrayLike) -> Any:
    return values if hasattr(values, "dtype") else to_array(values)


def _cut(flat_values: ArrayLike, splits: list[Any], start: int, stop: int) -> RaggedTensor:
    kept = []
    for level in splits:
        part = level[start : stop + 1]
        start, stop = int(part[0]), int(part[-1])
        kept.append(part - part[0])
    return RaggedTensor(flat_values[start:stop], tuple(kept))
