"""``TensorBundle``: the tensors of a TensorFlow checkpoint, in an index and in shards of data."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from google_crc32c import value as crc32c

from stratagem._src.checkpoint.tensorflow.messages import Message, parse
from stratagem._src.checkpoint.tensorflow.sstable import corrupt, read_table
from stratagem._src.checkpoint.tensorflow.tensors import (
    FixedSizeTensor,
    PartitionedTensor,
    StringTensor,
    Tensor,
)
from stratagem._src.core.errors import InvalidArgumentError, NotFoundError

__all__ = ["TensorBundle", "slice_key"]


_FULL_EXTENT = -1
_BITS_PER_BYTE = 7  # the first bits of the first byte say how many bytes there are

_ESCAPED = {b"\x00": b"\x00\xff", b"\xff": b"\xff\x00"}

_HEADER_KEY = b""
_SLICE = b"\x00"  # what keys of slices begin with
_VERSION = 1
_STRING = 7

# TensorFlow's numbers of dtypes. Quantized numbers are read as the integers that they are made of.
_DTYPES: dict[int, Any] = {
    1: np.float32,
    2: np.float64,
    3: np.int32,
    4: np.uint8,
    5: np.int16,
    6: np.int8,
    _STRING: np.object_,
    8: np.complex64,
    9: np.int64,
    10: np.bool_,
    11: np.int8,
    12: np.uint8,
    13: np.int32,
    14: ml_dtypes.bfloat16,
    15: np.int16,
    16: np.uint16,
    17: np.uint16,
    18: np.complex128,
    19: np.float16,
    22: np.uint32,
    23: np.uint64,
    24: ml_dtypes.float8_e5m2,
    25: ml_dtypes.float8_e4m3fn,
    26: ml_dtypes.float8_e4m3fnuz,
    27: ml_dtypes.float8_e4m3b11fnuz,
    28: ml_dtypes.float8_e5m2fnuz,
    29: ml_dtypes.int4,
    30: ml_dtypes.uint4,
    31: ml_dtypes.int2,
    32: ml_dtypes.uint2,
    33: ml_dtypes.float4_e2m1fn,
}


class TensorBundle:
    """The tensors of a checkpoint by their keys.

    The index is read and checked at once, data when they are asked for.

    Args:
        prefix: The path without ``.index`` or ``.data-00000-of-00001``.

    Attributes:
        shapes: The shape of each tensor.
        fingerprint: A number that differs for checkpoints with other content.

    Raises:
        DataLossError: If the index is corrupt.
        InvalidArgumentError: If the format is of a later version, or of a machine with another byte order.
    """

    def __init__(self, prefix: Path) -> None:
        self._prefix = prefix
        self._index = prefix.with_name(f"{prefix.name}.index")
        table = read_table(self._index)
        if _HEADER_KEY not in table:
            raise corrupt(self._index, "it is a table without the header of a checkpoint")
        header = parse("BundleHeader", table.pop(_HEADER_KEY), self._index)
        self._check_header(header)
        self._num_shards = int(header.num_shards)
        entries = {key: parse("BundleEntry", data, self._index) for key, data in table.items()}
        self._parts = {key: entry for key, entry in entries.items() if key.startswith(_SLICE)}
        self._entries = {
            _decoded(key, self._index): entry
            for key, entry in entries.items()
            if not key.startswith(_SLICE)
        }
        self.shapes: Mapping[str, tuple[int, ...]] = {
            name: self._shape(name, entry) for name, entry in self._entries.items()
        }
        self.fingerprint: int = int(crc32c(self._index.read_bytes()))

    def _check_header(self, header: Message) -> None:
        if header.endianness:
            raise InvalidArgumentError(
                f"{self._index} was written by a big-endian machine, which is not supported. Save it "
                "again on a little-endian one."
            )
        if header.version.min_consumer > _VERSION:
            raise InvalidArgumentError(
                f"{self._index} has version {header.version.producer} of TensorFlow's checkpoint format; "
                f"versions up to {_VERSION} are supported."
            )

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def dtype(self, name: str) -> np.dtype[Any]:
        """Returns the element type of a tensor; ``object`` for strings, which are ``bytes``.

        Raises:
            InvalidArgumentError: If it is a type that exists only in TensorFlow.
        """
        number = self._entries[name].dtype
        if number not in _DTYPES:
            raise InvalidArgumentError(
                f"The tensor {name!r} of {self._prefix} has TensorFlow's dtype number {number} (variant or "
                "resource), which is supported only by TensorFlow."
            )
        return np.dtype(_DTYPES[number])

    def readable_names(self) -> list[str]:
        """Returns the names of the tensors whose types exist outside of TensorFlow, sorted."""
        return sorted(name for name, entry in self._entries.items() if entry.dtype in _DTYPES)

    def tensor(self, name: str) -> Tensor:
        """Returns a tensor, whose data are still in their file.

        Raises:
            NotFoundError: If there is no such tensor.
            DataLossError: If its entry in the index is wrong.
        """
        if name not in self._entries:
            raise NotFoundError(
                f"The checkpoint {self._prefix} has no tensor {name!r}; it has {self.readable_names()}."
            )
        entry = self._entries[name]
        if not entry.slices:
            return self._tensor(name, entry)
        dtype, shape = self.dtype(name), self.shapes[name]
        parts = []
        for part in entry.slices:
            extents = [_extent(extent) for extent in part.extent]
            found = self._parts.get(slice_key(name, extents))
            if found is None or len(extents) != len(shape):
                raise corrupt(self._index, f"it lacks a slice of {name!r}")
            box = [
                (0, size) if extent is None else extent
                for extent, size in zip(extents, shape, strict=True)
            ]
            parts.append(([start for start, _ in box], self._tensor(name, found)))
        try:
            return PartitionedTensor(shape, dtype, parts)
        except ValueError as error:
            raise corrupt(self._index, f"the slices of {name!r} {error}") from error

    def _tensor(self, name: str, entry: Message) -> Tensor:
        if not 0 <= entry.shard_id < self._num_shards:
            raise corrupt(
                self._index, f"{name!r} is in shard {entry.shard_id} of {self._num_shards} shards"
            )
        shard = f"{self._prefix.name}.data-{entry.shard_id:05}-of-{self._num_shards:05}"
        path = self._prefix.with_name(shard)
        shape, dtype = self._shape(name, entry), self.dtype(name)
        place = (path, name, int(entry.offset), int(entry.size), int(entry.crc32c))
        if entry.dtype == _STRING:
            return StringTensor(*place, shape)
        tensor = FixedSizeTensor(*place, shape, dtype)
        if tensor.nbytes != entry.size:
            raise corrupt(
                self._index,
                f"{name!r} has {entry.size} bytes, but {dtype.name}{list(shape)} needs {tensor.nbytes}",
            )
        return tensor

    def _shape(self, name: str, entry: Message) -> tuple[int, ...]:
        shape = tuple(int(dim.size) for dim in entry.shape.dim)
        if entry.shape.unknown_rank or min(shape, default=0) < 0:
            raise corrupt(self._index, f"the shape of {name!r} is unknown")
        return shape


def _extent(extent: Message) -> tuple[int, int] | None:
    """Returns the start and length of a slice in one dimension, of which TensorFlow omits a full one."""
    return (int(extent.start), int(extent.length)) if extent.length else None


def _decoded(key: bytes, path: Path) -> str:
    try:
        return key.decode()
    except UnicodeDecodeError as error:
        raise corrupt(path, f"it has the key {key!r}, which is not UTF-8") from error


def slice_key(name: str, extents: Sequence[tuple[int, int] | None]) -> bytes:
    r"""Returns the key of a slice.

    >>> slice_key("w", [(2, 3), None])
    b'\x00w\x00\x01\x01\x02\x82\x83\x80\x7f'

    Args:
        name: The variable's name.
        extents: Where it begins and how long it is, in each dimension; ``None`` for all of it.
    """
    parts = [_number(0), _text(name.encode()), _number(len(extents))]
    for extent in extents:
        start, length = (0, _FULL_EXTENT) if extent is None else extent
        parts += [_signed(start), _signed(length)]
    return b"".join(parts)


def _number(number: int) -> bytes:
    size = (number.bit_length() + 7) // 8
    return bytes([size]) + number.to_bytes(size, "big")


def _text(text: bytes) -> bytes:
    return re.sub(rb"[\x00\xff]", lambda found: _ESCAPED[found[0]], text) + b"\x00\x01"


def _signed(number: int) -> bytes:
    size = max(number, ~number).bit_length() // _BITS_PER_BYTE + 1
    # As many ones as there are bytes, then a zero; the bits after them are the number's, sign first. Of a
    # negative number the ones and the zero are inverted.
    header = ((1 << size) - 1) << (8 * size - size)
    return ((number & ((1 << (8 * size)) - 1)) ^ header).to_bytes(size, "big")
