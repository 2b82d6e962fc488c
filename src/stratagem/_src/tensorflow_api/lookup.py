"""``tf.lookup``: hash tables on the host, for use in ``Dataset.map``."""

from __future__ import annotations

from typing import Any

import numpy as np

from stratagem._src.core.dtypes import is_host_only
from stratagem._src.core.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    TracedValueError,
)
from stratagem._src.core.types import ArrayLike, DTypeLike, PathLike
from stratagem._src.tensorflow_api import gfile
from stratagem._src.tensorflow_api.conversion import as_dtype, as_tensor, concrete, strings
from stratagem._src.tensorflow_api.fingerprint import fingerprint64
from stratagem._src.tensorflow_api.host_tensor import HostTensor

__all__ = [
    "KeyValueTensorInitializer",
    "MutableHashTable",
    "StaticHashTable",
    "StaticVocabularyTable",
    "TextFileIndex",
    "TextFileInitializer",
]


class TextFileIndex:
    """The part of a line that is a key or a value: a column's index, the whole line, or its number.

    >>> TextFileIndex.WHOLE_LINE, TextFileIndex.LINE_NUMBER
    (-2, -1)
    """

    WHOLE_LINE = -2
    LINE_NUMBER = -1


class KeyValueTensorInitializer:
    """Initializes a table from arrays of keys and values.

    >>> KeyValueTensorInitializer(["a", "b"], [0, 1]).value_dtype
    dtype('int32')

    Args:
        keys: A vector.
        values: A vector of the same length.
        key_dtype: The dtype of the keys; default: their own.
        value_dtype: The dtype of the values; default: their own.
        name: Ignored.
    """

    def __init__(
        self,
        keys: ArrayLike,
        values: ArrayLike,
        key_dtype: DTypeLike = None,
        value_dtype: DTypeLike = None,
        name: str | None = None,
    ) -> None:
        self._keys, self._values = _vector(keys, key_dtype), _vector(values, value_dtype)
        if self._keys.shape != self._values.shape or self._keys.ndim != 1:
            raise InvalidArgumentError(
                "A table needs a vector of keys and a vector of as many values, got shapes "
                f"{self._keys.shape} and {self._values.shape}."
            )

    @property
    def key_dtype(self) -> np.dtype[Any]:
        """The dtype of the keys."""
        return self._keys.dtype

    @property
    def value_dtype(self) -> np.dtype[Any]:
        """The dtype of the values."""
        return self._values.dtype

    def pairs(self) -> list[tuple[Any, Any]]:
        """Returns the pairs of keys and values."""
        return list(zip(self._keys.tolist(), self._values.tolist(), strict=True))


class TextFileInitializer:
    """Initializes a table from the lines of a text file.

    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "words.txt")
    >>> with open(path, "w") as file:
    ...     _ = file.write("one\\ntwo\\n")
    >>> words = TextFileInitializer(
    ...     path, "string", TextFileIndex.WHOLE_LINE, "int64", TextFileIndex.LINE_NUMBER
    ... )
    >>> StaticHashTable(words, -1).lookup(["two", "three"])
    HostTensor([ 1, -1])

    Args:
        filename: The file.
        key_dtype: The dtype of the keys.
        key_index: The part of a line that is the key; see ``TextFileIndex``.
        value_dtype: The dtype of the values.
        value_index: The part of a line that is the value.
        vocab_size: The number of lines to read; default: all.
        delimiter: The separator of columns.
        name: Ignored.
        value_index_offset: A number to add to values that are line numbers.
    """

    def __init__(
        self,
        filename: PathLike,
        key_dtype: DTypeLike,
        key_index: int,
        value_dtype: DTypeLike,
        value_index: int,
        vocab_size: int | None = None,
        delimiter: str = "\t",
        name: str | None = None,
        value_index_offset: int = 0,
    ) -> None:
        self.key_dtype: np.dtype[Any] = as_dtype(key_dtype)
        self.value_dtype: np.dtype[Any] = as_dtype(value_dtype)
        for index, dtype in ((key_index, self.key_dtype), (value_index, self.value_dtype)):
            if index < -2:
                raise InvalidArgumentError(
                    f"The index of a column must not be negative, got {index}."
                )
            if index == TextFileIndex.LINE_NUMBER and dtype != np.int64:
                raise InvalidArgumentError(
                    f"The dtype of line numbers must be int64, got {dtype.name}."
                )
            if index == TextFileIndex.WHOLE_LINE and not is_host_only(dtype):
                raise InvalidArgumentError(
                    f"The dtype of whole lines must be string, got {dtype.name}."
                )
        self._filename = gfile.text_path(filename)
        self._parts = (
            (key_index, self.key_dtype, 0),
            (value_index, self.value_dtype, value_index_offset),
        )
        self._limit, self._delimiter = vocab_size, delimiter.encode()

    def pairs(self) -> list[tuple[Any, Any]]:
        """Returns the pairs of keys and values."""
        with gfile.GFile(self._filename, "rb") as file:
            lines = file.read().split(b"\n")
        if lines and not lines[-1]:
            lines.pop()
        if self._limit is not None:
            if len(lines) < self._limit:
                raise InvalidArgumentError(
                    f"{self._filename} must have {self._limit} lines, got {len(lines)}."
                )
            lines = lines[: self._limit]
        return [
            (self._part(line, number, *self._parts[0]), self._part(line, number, *self._parts[1]))
            for number, line in enumerate(lines)
        ]

    def _part(self, line: bytes, number: int, index: int, dtype: DTypeLike, offset: int) -> Any:
        if index == TextFileIndex.LINE_NUMBER:
            return number + offset
        line = line.removesuffix(b"\r")
        text = line if index == TextFileIndex.WHOLE_LINE else self._column(line, number, index)
        return text if is_host_only(dtype) else dtype.type(text).item()

    def _column(self, line: bytes, number: int, index: int) -> bytes:
        columns = line.split(self._delimiter)
        if index >= len(columns):
            raise InvalidArgumentError(
                f"Line {number} of {self._filename} must have a column {index}, got {line!r}."
            )
        return columns[index]


def _vector(values: ArrayLike, dtype: DTypeLike) -> np.ndarray[Any, Any]:
    if hasattr(values, "dtype") and not is_host_only(values.dtype):
        array = np.asarray(values)
        return array if dtype is None else array.astype(as_dtype(dtype))
    array = np.asarray(as_tensor(values))
    if dtype is None or is_host_only(array.dtype):
        return array
    return np.asarray(values, as_dtype(dtype))


class _Table:
    """The base class of tables."""

    def __init__(self, key_dtype: DTypeLike, value_dtype: DTypeLike) -> None:
        self._key_dtype, self._value_dtype = as_dtype(key_dtype), as_dtype(value_dtype)
        self._entries: dict[Any, Any] = {}

    @property
    def key_dtype(self) -> np.dtype[Any]:
        """The dtype of the keys."""
        return self._key_dtype

    @property
    def value_dtype(self) -> np.dtype[Any]:
        """The dtype of the values."""
        return self._value_dtype

    def size(self, name: str | None = None) -> HostTensor:
        """Returns the number of keys."""
        return HostTensor.of(np.array(len(self._entries), np.int64))

    def export(self, name: str | None = None) -> tuple[HostTensor, HostTensor]:
        """Returns all keys and all values."""
        return (
            _made(list(self._entries), (len(self._entries),), self._key_dtype),
            _made(
                list(self._entries.values()),
                (len(self._entries), *self._value_shape()),
                self._value_dtype,
            ),
        )

    def _value_shape(self) -> tuple[int, ...]:
        return ()

    def _keys(self, keys: ArrayLike) -> np.ndarray[Any, Any]:
        if is_host_only(self._key_dtype):
            return np.asarray(strings("lookup", keys))
        array = concrete(keys)
        if array is None:
            raise TracedValueError(
                "A tf.lookup table is on the host, got traced keys. Look up in Dataset.map, or use an "
                "array as the table: tf.gather(table, keys)."
            )
        if array.dtype.kind != self._key_dtype.kind:
            raise TypeError(
                f"Keys of this table must be {self._key_dtype.name}, got {array.dtype.name}."
            )
        return array.astype(self._key_dtype)

    def __getitem__(self, keys: ArrayLike) -> HostTensor:
        return self.lookup(keys)

    def lookup(self, keys: ArrayLike, name: str | None = None) -> HostTensor:
        """Returns the value of each key."""
        raise NotImplementedError


def _made(items: list[Any], shape: tuple[int, ...], dtype: DTypeLike) -> HostTensor:
    if not is_host_only(dtype):
        return HostTensor.of(np.array(items, dtype).reshape(shape))
    made = np.empty(len(items), np.object_)
    made[:] = items
    return HostTensor.of(made.reshape(shape))


class StaticHashTable(_Table):
    """An immutable table; missing keys have the default value.

    >>> table = StaticHashTable(KeyValueTensorInitializer(["a", "b"], [10, 20]), default_value=-1)
    >>> table.lookup(["b", "c"])
    HostTensor([20, -1], dtype=int32)

    Args:
        initializer: A ``KeyValueTensorInitializer`` or ``TextFileInitializer``.
        default_value: The value of missing keys.
        name: Ignored.
        experimental_is_anonymous: Ignored.
    """

    def __init__(
        self,
        initializer: KeyValueTensorInitializer | TextFileInitializer,
        default_value: ArrayLike,
        name: str | None = None,
        experimental_is_anonymous: bool = False,
    ) -> None:
        super().__init__(initializer.key_dtype, initializer.value_dtype)
        self._default = _vector(default_value, self._value_dtype).reshape(-1)[0]
        for key, value in initializer.pairs():
            if key in self._entries and self._entries[key] != value:
                raise FailedPreconditionError(
                    f"A key must have one value, got {self._entries[key]!r} and {value!r} for {key!r}."
                )
            self._entries[key] = value

    @property
    def default_value(self) -> Any:
        """The value of missing keys."""
        return self._default

    def lookup(self, keys: ArrayLike, name: str | None = None) -> HostTensor:
        """Returns the value of each key."""
        array = self._keys(keys)
        found = [self._entries.get(key, self._default) for key in array.ravel().tolist()]
        return _made(found, array.shape, self._value_dtype)


class StaticVocabularyTable(_Table):
    """A vocabulary: maps words to ids, and unknown words to out-of-vocabulary buckets by hash.

    >>> words = KeyValueTensorInitializer(["a", "b"], np.array([0, 1]), value_dtype="int64")
    >>> StaticVocabularyTable(words, num_oov_buckets=1).lookup(["b", "x"])
    HostTensor([1, 2])

    Args:
        initializer: Keys, and as values the ids from 0 on, of int64.
        num_oov_buckets: The number of out-of-vocabulary buckets.
        lookup_key_dtype: The dtype of the keys without an initializer.
        name: Ignored.
        experimental_is_anonymous: Ignored.
    """

    def __init__(
        self,
        initializer: KeyValueTensorInitializer | TextFileInitializer | None,
        num_oov_buckets: int,
        lookup_key_dtype: DTypeLike = None,
        name: str | None = None,
        experimental_is_anonymous: bool = False,
    ) -> None:
        if num_oov_buckets <= 0:
            raise InvalidArgumentError(f"num_oov_buckets must be positive, got {num_oov_buckets}.")
        if initializer is not None and initializer.value_dtype.kind != "i":
            raise TypeError(f"Values must be integers, got {initializer.value_dtype.name}.")
        super().__init__(
            initializer.key_dtype if initializer is not None else (lookup_key_dtype or np.object_),
            np.int64,
        )
        self._buckets = num_oov_buckets
        if initializer is not None:
            self._entries = dict(initializer.pairs())

    def size(self, name: str | None = None) -> HostTensor:
        """Returns the number of ids, including the out-of-vocabulary buckets."""
        return HostTensor.of(np.array(len(self._entries) + self._buckets, np.int64))

    def lookup(self, keys: ArrayLike, name: str | None = None) -> HostTensor:
        """Returns the id of each key."""
        array = self._keys(keys)
        found = []
        for key in array.ravel().tolist():
            if key in self._entries:
                found.append(self._entries[key])
            else:
                data = key if isinstance(key, bytes) else str(key).encode()
                found.append(len(self._entries) + fingerprint64(data) % self._buckets)
        return _made(found, array.shape, self._value_dtype)


class MutableHashTable(_Table):
    """A mutable table.

    >>> table = MutableHashTable("string", "int64", default_value=-1)
    >>> table.insert(["a", "b"], [1, 2])
    >>> table.lookup(["a", "c"])
    HostTensor([ 1, -1])

    Args:
        key_dtype: The dtype of the keys.
        value_dtype: The dtype of the values.
        default_value: The value of missing keys: a number or string, or a vector if all values are vectors.
        name: Ignored.
        checkpoint: Ignored: checkpoints do not save tables.
        experimental_is_anonymous: Ignored.
    """

    def __init__(
        self,
        key_dtype: DTypeLike,
        value_dtype: DTypeLike,
        default_value: ArrayLike,
        name: str = "MutableHashTable",
        checkpoint: bool = True,
        experimental_is_anonymous: bool = False,
    ) -> None:
        super().__init__(key_dtype, value_dtype)
        self._default = _vector(default_value, self._value_dtype)

    def _value_shape(self) -> tuple[int, ...]:
        return self._default.shape

    def insert(self, keys: ArrayLike, values: ArrayLike, name: str | None = None) -> None:
        """Sets the values of keys."""
        array = self._keys(keys)
        new = _vector(values, self._value_dtype)
        if new.shape != (*array.shape, *self._default.shape):
            raise InvalidArgumentError(
                f"values must have shape {(*array.shape, *self._default.shape)}, got {new.shape}."
            )
        rows = new.reshape(array.size, *self._default.shape)
        for key, row in zip(array.ravel().tolist(), rows, strict=True):
            self._entries[key] = row.tolist() if isinstance(row, np.ndarray) else row

    def remove(self, keys: ArrayLike, name: str | None = None) -> None:
        """Removes keys; missing keys are ignored."""
        for key in self._keys(keys).ravel().tolist():
            self._entries.pop(key, None)

    def lookup(  # type: ignore[override]  # TensorFlow's order of arguments
        self, keys: ArrayLike, dynamic_default_values: ArrayLike = None, name: str | None = None
    ) -> HostTensor:
        """Returns the value of each key."""
        array = self._keys(keys)
        fallback = self._default if dynamic_default_values is None else None
        if fallback is None:
            fallback = _vector(dynamic_default_values, self._value_dtype)
        one = fallback.tolist() if fallback.shape == self._default.shape else None
        rows = fallback.tolist() if one is None else None
        found = [
            self._entries.get(key, one if rows is None else rows[place])
            for place, key in enumerate(array.ravel().tolist())
        ]
        return _made(found, (*array.shape, *self._default.shape), self._value_dtype)
