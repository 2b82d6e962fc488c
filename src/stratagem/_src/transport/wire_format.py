"""How a message is laid out in bytes: a head of fixed size, a method, a description, a body, arrays.

Arrays start at multiples of 64 bytes from the end of the body, as devices like them.
"""

from __future__ import annotations

import functools
import json
import math
import operator
import struct
from typing import Any, NamedTuple

import ml_dtypes  # noqa: F401  (makes bfloat16 and its like known to NumPy)
import numpy as np

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.transport.message import Message
from stratagem._src.transport.records import Piece

__all__ = ["HEAD_BYTES", "Head", "Kind", "Layout", "encode", "parse_head", "parse_layout"]

_HEAD = struct.Struct("<BxHIQ")
HEAD_BYTES = _HEAD.size
_ALIGNMENT = 64
_FIRST_ADDED_DTYPE = 256


class Kind:
    """What a message is."""

    REQUEST = 0
    RESULT = 1
    ERROR = 2
    EVENT = 3


class Head(NamedTuple):
    """The sizes of what follows it."""

    kind: int
    method_bytes: int
    layout_bytes: int
    body_bytes: int

    @property
    def layout_start(self) -> int:
        """Where the description of the arrays begins."""
        return HEAD_BYTES + self.method_bytes

    @property
    def body_start(self) -> int:
        """Where the body begins."""
        return HEAD_BYTES + self.method_bytes + self.layout_bytes

    @property
    def end(self) -> int:
        """Where everything but the arrays ends."""
        return self.body_start + self.body_bytes


class Layout(NamedTuple):
    """Where the arrays of a message lie in its last part, and how large that is."""

    places: tuple[tuple[int, np.dtype[Any], tuple[int, ...]], ...]
    num_bytes: int

    def cut(self, buffer: np.ndarray[Any, np.dtype[np.uint8]]) -> tuple[np.ndarray[Any, Any], ...]:
        """Returns the arrays that lie in a buffer, without copying them."""
        return tuple(
            np.ndarray(shape, dtype, buffer, offset) for offset, dtype, shape in self.places
        )


def parse_head(data: bytes | bytearray | memoryview) -> Head:
    """Returns the head that the first ``HEAD_BYTES`` hold.

    Raises:
        ValueError: If there are fewer.
    """
    if len(data) < HEAD_BYTES:
        raise ValueError(f"a message must begin with {HEAD_BYTES} bytes, got {len(data)}")
    return Head(*_HEAD.unpack_from(data))


@functools.lru_cache(maxsize=1024)
def parse_layout(description: bytes) -> Layout:
    """Returns the layout that a description spells.

    Raises:
        ValueError: If it spells none.

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
                raise ValueError(f"no array of {dtype} and shape {shape} can travel")
            places.append((offset, dtype, shape))
            end = offset + dtype.itemsize * math.prod(shape)
    except (TypeError, RecursionError) as error:
        raise ValueError("a description of arrays is malformed") from error
    return Layout(tuple(places), end)


def encode(kind: int, method: str, message: Message) -> list[Piece]:
    """Returns a message as pieces of memory to send one after the other, its text first.

    Raises:
        InvalidArgumentError: If an array cannot travel.
    """
    name = method.encode()
    if not message.arrays:
        return [_HEAD.pack(kind, len(name), 0, len(message.body)) + name + message.body]
    arrays = [np.ascontiguousarray(array) for array in message.arrays]
    # ascontiguousarray makes arrays without dimensions one-dimensional.
    description = _describe(
        tuple((made.dtype, given.shape) for made, given in zip(arrays, message.arrays, strict=True))
    )
    head = _HEAD.pack(kind, len(name), len(description), len(message.body))
    text = b"".join((head, name, description, message.body))
    pieces: list[Piece] = [text]
    end = 0
    for array in arrays:
        if padding := -end % _ALIGNMENT:
            pieces.append(bytes(padding))
        if array.nbytes:
            pieces.append(array.reshape(-1).view(np.uint8).data)
        end += padding + array.nbytes
    return pieces


@functools.lru_cache(maxsize=1024)
def _describe(arrays: tuple[tuple[np.dtype[Any], tuple[int, ...]], ...]) -> bytes:
    return json.dumps([[_dtype_name(dtype), shape] for dtype, shape in arrays]).encode()


def _dtype_name(dtype: np.dtype[Any]) -> str:
    if dtype.hasobject or dtype.fields is not None:
        raise InvalidArgumentError(
            f"Arrays that travel must have numbers, booleans or strings of fixed size, got dtype "
            f"{dtype}. Pickle others into the body."
        )
    # ml_dtypes look like raw bytes to everything but their name.
    return dtype.name if dtype.num >= _FIRST_ADDED_DTYPE else dtype.str
