"""``shifted``: shifts the timestamps of a record of JAX's profiler.

TensorBoard shows the records of several tasks next to each other, each from its own start. To align them,
all written records have the same start. A record is an ``XSpace``, a protocol buffer with planes, which
have lines, whose events have times relative to the line's ``timestamp_ns``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

__all__ = ["shifted"]

_PLANES_OF_SPACE, _LINES_OF_PLANE = 1, 3
_TIMESTAMP_OF_LINE, _EVENTS_OF_LINE = 3, 4
_VARINT, _EIGHT_BYTES, _MESSAGE, _FOUR_BYTES = 0, 1, 2, 5


class _Field(NamedTuple):
    """A field of a message: its number and type, and the positions of the field and its value."""

    number: int
    type: int
    begin: int
    value: int
    end: int


def shifted(record: bytes, by_ns: int) -> bytes:
    """Returns a record with all events shifted to a later time.

    Args:
        record: A serialized ``XSpace``.
        by_ns: The shift in nanoseconds; at least 0.
    """

    def shift_line(line: bytes) -> bytes:
        # Appends a second timestamp field: the last one of a repeated scalar field wins.
        return line + _varint(_TIMESTAMP_OF_LINE << 3) + _varint(_timestamp(line) + by_ns)

    def shift_plane(plane: bytes) -> bytes:
        return _with_messages(plane, _LINES_OF_PLANE, shift_line)

    return _with_messages(record, _PLANES_OF_SPACE, shift_plane)


def _with_messages(data: bytes, number: int, change: Callable[[bytes], bytes]) -> bytes:
    """Returns a message in which all submessages of a field are replaced."""
    parts = []
    for field in _fields(data):
        if field.number != number:
            parts.append(data[field.begin : field.end])
        else:
            changed = change(data[field.value : field.end])
            parts += [_varint(number << 3 | _MESSAGE), _varint(len(changed)), changed]
    return b"".join(parts)


def _timestamp(line: bytes) -> int:
    for field in _fields(line):
        if field.number == _TIMESTAMP_OF_LINE:
            return _read_varint(line, field.value)[0]
        if field.number == _EVENTS_OF_LINE:
            break
    return 0


def _fields(data: bytes) -> Iterator[_Field]:
    begin = 0
    while begin < len(data):
        key, value = _read_varint(data, begin)
        number, type_ = key >> 3, key & 7
        if type_ == _VARINT:
            end = _read_varint(data, value)[1]
        elif type_ == _MESSAGE:
            length, value = _read_varint(data, value)
            end = value + length
        elif type_ in (_EIGHT_BYTES, _FOUR_BYTES):
            end = value + (8 if type_ == _EIGHT_BYTES else 4)
        else:
            raise ValueError(f"A record has fields of known wire types, got {type_}.")
        yield _Field(number, type_, begin, value, end)
        begin = end


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Returns the number at a position, and the position after it."""
    number = shift = 0
    while True:
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
        shift += 7


def _varint(number: int) -> bytes:
    written = bytearray()
    while number >= 0x80:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)
