"""The keys of slices in a checkpoint's index: of a partitioned variable, each part has an entry of its own.

They are written in TensorFlow's ordered code, in which keys sort as the numbers and texts they are made of.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["slice_key"]

_FULL_EXTENT = -1
_BITS_PER_BYTE = 7  # the first bits of the first byte say how many bytes there are

_ESCAPED = {b"\x00": b"\x00\xff", b"\xff": b"\xff\x00"}


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
