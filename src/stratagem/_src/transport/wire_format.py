"""The wire format of a message: a header of fixed size, the method, the array layout, the body, the arrays.

The header is little-endian: kind (1 byte), padding (1), and the sizes of method (2), layout (4) and body
(8). The layout is JSON, ``[[dtype, shape], ...]``. Arrays start at multiples of 64 bytes after the body, so
that they can be used without a copy.
"""

from __future__ import annotations

import functools
import json
import math
import operator
import struct
from typing import Any, NamedTuple

import ml_dtypes  # noqa: F401  (registers bfloat16 and similar dtypes with NumPy)
import numpy as np

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.transport.message import Message
from stratagem._src.transport.records import Buffer

__all__ = ["HEAD_BYTES", "Head", "Kind", "Layout", "encode", "parse_head", "parse_layout"]

_HEAD = struct.Struct("<BxHIQ")
HEAD_BYTES = _HEAD.size
_ALIGNMENT = 64
_FIRST_USER_DTYPE = 256


class Kind:
    """The kind of a message."""

    REQUEST = 0
    RESULT = 1
    ERROR = 2
    EVENT = 3


class Head(NamedTuple):
    """The kind of a message, and the sizes of its parts."""

    kind: int
    method_bytes: int
    layout_bytes: int
    body_bytes: int

    @property
    def layout_start(self) -> int:
        """The offset of the array layout."""
        return HEAD_BYTES + self.method_bytes

    @property
    def body_start(self) -> int:
        """The offset of the body."""
        return HEAD_BYTES + self.method_bytes + self.layout_bytes

    @property
    def end(self) -> int:
        """The offset of the end of everything except the arrays."""
        return self.body_start + self.body_bytes


class Layout(NamedTuple):
    """The offsets, dtypes and shapes of the arrays of a message, and their total size."""

    places: tuple[tuple[int, np.dtype[Any], tuple[int, ...]], ...]
    num_bytes: int

    def views(
        self, buffer: np.ndarray[Any, np.dtype[np.uint8]]
    ) -> tuple[np.ndarray[Any, Any], ...]:
        """Returns the arrays as views into a buffer, without copying them."""
        return tuple(
            np.ndarray(shape, dtype, buffer, offset) for offset, dtype, shape in self.places
        )


def parse_head(data: bytes | bytearray | memoryview) -> Head:
    """Parses the first ``HEAD_BYTES`` bytes of a message.

    Raises:
        ValueError: If there are fewer bytes.
    """
    if len(data) < HEAD_BYTES:
        raise ValueError(f"a message must begin with {HEAD_BYTES} bytes, got {len(data)}")
    return Head(*_HEAD.unpack_from(data))


@functools.lru_cache(maxsize=1024)
def parse_layout(description: bytes) -> Layout:
    """Parses the description of an array layout.

    Raises:
        ValueError: If it is malformed.

    >>> from stratagem._src.transport.wire_format import parse_layout
    >>> parse_layout(b'[["<f4", [2, 3]], ["bfloat16", []]]').num_bytes
    66
    """
    places, end = [], 0
    try:
        for name, sizes in json.loads(description):
            offset = end + -end % _ALIGNMENT
            dtype, shape = np.dtype(name), tuple(map(operator.index, sizes))
            if dtype.hasobject or any(size < 0 for size in shape):
                raise ValueError(f"an array of {dtype} and shape {shape} cannot be sent")
            places.append((offset, dtype, shape))
            end = offset + dtype.itemsize * math.prod(shape)
    except (TypeError, RecursionError) as error:
        raise ValueError("a description of arrays is malformed") from error
    return Layout(tuple(places), end)


def encode(kind: int, method: str, message: Message) -> list[Buffer]:
    """Returns a message as buffers to send one after the other: header and text first, then the arrays.

    Raises:
        InvalidArgumentError: If an array cannot be sent.
    """
    name = method.encode()
    if not message.arrays:
        return [_HEAD.pack(kind, len(name), 0, len(message.body)) + name + message.body]
    arrays = [np.ascontiguousarray(array) for array in message.arrays]
    # ascontiguousarray makes 0-d arrays one-dimensional, so the shape comes from the original.
    description = _describe(
        tuple((made.dtype, given.shape) for made, given in zip(arrays, message.arrays, strict=True))
    )
    head = _HEAD.pack(kind, len(name), len(description), len(message.body))
    text = b"".join((head, name, description, message.body))
    buffers: list[Buffer] = [text]
    end = 0
    for array in arrays:
        if padding := -end % _ALIGNMENT:
            buffers.append(bytes(padding))
        if array.nbytes:
            buffers.append(array.reshape(-1).view(np.uint8).data)
        end += padding + array.nbytes
    return buffers


@functools.lru_cache(maxsize=1024)
def _describe(arrays: tuple[tuple[np.dtype[Any], tuple[int, ...]], ...]) -> bytes:
    return json.dumps([[_dtype_name(dtype), shape] for dtype, shape in arrays]).encode()


def _dtype_name(dtype: np.dtype[Any]) -> str:
    if dtype.hasobject or dtype.fields is not None:
        raise InvalidArgumentError(
            f"Arrays in a message must have numbers, booleans or strings of fixed size, got dtype {dtype}. "
            "Pickle others into the body."
        )
    # dtype.str of an ml_dtypes dtype is that of raw bytes ("<V2"); only its name identifies it.
    return dtype.name if dtype.num >= _FIRST_USER_DTYPE else dtype.str
