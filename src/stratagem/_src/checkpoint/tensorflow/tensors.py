"""Tensors in the data files of a TensorFlow checkpoint, and their checksums."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from google_crc32c import extend as extend_checksum
from google_crc32c import value as crc32c

from stratagem._src.checkpoint.format.saved_state import SavedArray
from stratagem._src.checkpoint.tensorflow.sstable import corrupt, masked_checksum, varint

__all__ = ["FixedSizeTensor", "PartitionedTensor", "StringTensor", "Tensor"]

Array = np.ndarray[Any, Any]

_BLOCK_BYTES = 1 << 20


class Tensor(SavedArray, Protocol):
    """A tensor in a file. See ``SavedArray``."""


class _InFile:
    """Bytes of a data file.

    Args:
        path: The file.
        name: The tensor's name.
        offset: Where it begins.
        size: How many bytes it has.
        checksum: Its masked CRC-32C.
    """

    def __init__(self, path: Path, name: str, offset: int, size: int, checksum: int) -> None:
        self._path, self._name = path, name
        self._offset, self._size, self._checksum = offset, size, checksum

    def _open(self) -> io.BufferedReader:
        try:
            file = self._path.open("rb")
        except OSError as error:
            raise corrupt(
                self._path, f"{self._name!r} is in it, but it cannot be read ({error.strerror})"
            ) from error
        num_bytes = file.seek(0, 2)
        end = self._offset + self._size
        if self._offset < 0 or self._size < 0 or end > num_bytes:
            file.close()
            raise corrupt(
                self._path,
                f"it is truncated: {self._name!r} ends at byte {end}, but the file has {num_bytes}",
            )
        file.seek(self._offset)
        return file

    def _fill(self, file: io.BufferedReader, target: Array) -> None:
        if file.readinto(target.data) != target.nbytes:
            raise corrupt(self._path, f"it became shorter while {self._name!r} was being read")

    def _check(self, checksum: int) -> None:
        if masked_checksum(checksum) != self._checksum:
            raise corrupt(self._path, f"the checksum of {self._name!r} is wrong")


class FixedSizeTensor(_InFile):
    """A tensor of numbers or booleans.

    Args:
        path: Its file.
        name: Its name.
        offset: Where it begins.
        size: How many bytes it has.
        checksum: Its masked CRC-32C.
        shape: Its shape.
        dtype: Its element type.
    """

    def __init__(
        self,
        path: Path,
        name: str,
        offset: int,
        size: int,
        checksum: int,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
    ) -> None:
        super().__init__(path, name, offset, size, checksum)
        self.shape, self.dtype = shape, dtype

    @property
    def nbytes(self) -> int:
        """How many bytes a tensor of this shape and type has."""
        return math.prod(self.shape) * self.dtype.itemsize

    def start_read(self) -> None:
        """Does nothing: it is read when it is asked for."""

    def read(self) -> Array:
        """Returns the tensor."""
        data, checksum = np.empty(self._size, np.uint8), 0
        with self._open() as file:
            for begin in range(0, self._size, _BLOCK_BYTES):
                block = data[begin : begin + _BLOCK_BYTES]
                self._fill(file, block)
                checksum = extend_checksum(checksum, block)  # while it is in the processor's cache
        self._check(checksum)
        return data.view(self.dtype).reshape(self.shape)

    def rows(self, begin: int, end: int) -> Array:
        """Returns consecutive rows, of which ``verify`` has checked the checksum."""
        if end == -1 or not self.shape:
            return self.read()
        row_bytes = self.nbytes // self.shape[0] if self.shape[0] else 0
        with self._open() as file:
            file.seek(self._offset + begin * row_bytes)
            data = np.empty((end - begin) * row_bytes, np.uint8)
            self._fill(file, data)
        return data.view(self.dtype).reshape(end - begin, *self.shape[1:])

    def verify(self, begin: int = 0, end: int = -1) -> None:
        """Checks all of it, in blocks."""
        checksum, left = 0, self._size
        with self._open() as file:
            while left:
                data = np.empty(min(left, _BLOCK_BYTES), np.uint8)
                self._fill(file, data)
                checksum = extend_checksum(checksum, data)
                left -= data.nbytes
        self._check(checksum)


class StringTensor(_InFile):
    """A tensor of strings: their lengths, a checksum of those, and then the strings.

    The arguments are those of ``FixedSizeTensor``.
    """

    dtype: np.dtype[Any] = np.dtype(np.object_)

    def __init__(
        self, path: Path, name: str, offset: int, size: int, checksum: int, shape: tuple[int, ...]
    ) -> None:
        super().__init__(path, name, offset, size, checksum)
        self.shape = shape

    def start_read(self) -> None:
        """Does nothing: it is read when it is asked for."""

    def read(self) -> Array:
        """Returns the strings as ``bytes``."""
        with self._open() as file:
            data = file.read(self._size)
        count = math.prod(self.shape)
        try:
            lengths, position = [], 0
            for _ in range(count):
                length, position = varint(data, position)
                lengths.append(length)
            texts = self._texts(data, lengths, position)
        except (IndexError, ValueError) as error:
            raise corrupt(self._path, f"the strings of {self._name!r} are malformed") from error
        array = np.empty(count, np.object_)
        array[:] = texts
        return array.reshape(self.shape)

    def _texts(self, data: bytes, lengths: Sequence[int], position: int) -> list[bytes]:
        stored, begin = data[position : position + 4], position + 4
        if begin + sum(lengths) != len(data):
            raise ValueError("lengths do not add up")
        # TensorFlow computes the checksum of the lengths as 4-byte numbers, not as they are stored.
        checksum = crc32c(b"".join(n.to_bytes(4 if n < 1 << 32 else 8, "little") for n in lengths))
        if masked_checksum(checksum).to_bytes(4, "little") != stored:
            raise corrupt(self._path, f"the checksum of the lengths of {self._name!r} is wrong")
        self._check(extend_checksum(extend_checksum(checksum, stored), data[begin:]))
        texts = []
        for length in lengths:
            texts.append(data[begin : begin + length])
            begin += length
        return texts

    def rows(self, begin: int, end: int) -> Array:
        """Returns consecutive rows."""
        return self.read() if end == -1 or not self.shape else self.read()[begin:end]

    def verify(self, begin: int = 0, end: int = -1) -> None:
        """Checks all of it."""
        self.read()


class PartitionedTensor:
    """A tensor whose slices are tensors of their own, as of a variable with a partitioner.

    Args:
        shape: Its shape.
        dtype: Its element type.
        parts: The slices, each with the indices at which it begins.

    Raises:
        ValueError: If the slices overlap, or do not cover all of it.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        parts: Sequence[tuple[Sequence[int], Tensor]],
    ) -> None:
        self.shape, self.dtype = shape, dtype
        self._parts = parts
        starts = np.array([start for start, _ in parts], np.int64).reshape(len(parts), len(shape))
        ends = starts + np.array([part.shape for _, part in parts], np.int64).reshape(starts.shape)
        if (starts < 0).any() or (ends > np.array(shape, np.int64)).any():
            raise ValueError("are not inside of it")
        for number in range(1, len(parts)):
            before = slice(0, number)
            common = np.minimum(ends[before], ends[number]) - np.maximum(
                starts[before], starts[number]
            )
            if (common > 0).all(axis=1).any():
                raise ValueError("overlap")
        if sum(math.prod(part.shape) for _, part in parts) != math.prod(shape):
            raise ValueError("do not cover all of it")

    def start_read(self) -> None:
        """Does nothing: it is read when it is asked for."""

    def read(self) -> Array:
        """Returns the tensor."""
        found = np.empty(self.shape, self.dtype)
        for start, part in self._parts:
            found[_box(start, part.shape)] = part.read()
        return found

    def rows(self, begin: int, end: int) -> Array:
        """Returns consecutive rows, of which ``verify`` has checked the checksum."""
        if end == -1 or not self.shape:
            return self.read()
        found = np.empty((end - begin, *self.shape[1:]), self.dtype)
        for (first, *others), part in self._parts:
            start, stop = max(begin, first), min(end, first + part.shape[0])
            if start < stop:
                box = (slice(start - begin, stop - begin), *_box(others, part.shape[1:]))
                found[box] = part.rows(start - first, stop - first)
        return found

    def verify(self, begin: int = 0, end: int = -1) -> None:
        """Checks all slices."""
        for _, part in self._parts:
            part.verify()


def _box(start: Sequence[int], shape: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(k, k + size) for k, size in zip(start, shape, strict=True))
