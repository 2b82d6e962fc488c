"""The hash of strings that ``tf.strings.to_hash_bucket_fast`` takes: FarmHash's 64-bit fingerprint.

Models keep rows of tables by it, so its numbers must be TensorFlow's.
"""

from __future__ import annotations

__all__ = ["fingerprint64"]

_MASK = (1 << 64) - 1
_K0, _K1, _K2 = 0xC3A5C85C97CB3127, 0xB492B66FBE98F273, 0x9AE16A3B2F90404F


def fingerprint64(data: bytes) -> int:
    """Returns the fingerprint of some bytes.

    >>> fingerprint64(b"") == _K2
    True
    """
    if len(data) <= 16:
        return _up_to_16(data)
    if len(data) <= 32:
        return _up_to_32(data)
    if len(data) <= 64:
        return _up_to_64(data)
    return _longer(data)


def _word(data: bytes, place: int, size: int = 8) -> int:
    return int.from_bytes(data[place : place + size], "little")


def _rotated(value: int, shift: int) -> int:
    value &= _MASK
    return (value >> shift) | (value << (64 - shift)) & _MASK


def _mixed(value: int) -> int:
    value &= _MASK
    return value ^ (value >> 47)


def _joined(one: int, other: int, factor: int) -> int:
    first = _mixed((one ^ other) * factor)
    return _mixed((other ^ first) * factor) * factor & _MASK


def _up_to_16(data: bytes) -> int:
    size = len(data)
    factor = (_K2 + size * 2) & _MASK
    if size >= 8:
        a, b = (_word(data, 0) + _K2) & _MASK, _word(data, size - 8)
        c = (_rotated(b, 37) * factor + a) & _MASK
        d = (_rotated(a, 25) + b) * factor & _MASK
        return _joined(c, d, factor)
    if size >= 4:
        return _joined(size + (_word(data, 0, 4) << 3), _word(data, size - 4, 4), factor)
    if size > 0:
        y = data[0] + (data[size >> 1] << 8)
        z = size + (data[size - 1] << 2)
        return _mixed(y * _K2 ^ z * _K0) * _K2 & _MASK
    return _K2


def _up_to_32(data: bytes) -> int:
    size = len(data)
    factor = (_K2 + size * 2) & _MASK
    a, b = _word(data, 0) * _K1 & _MASK, _word(data, 8)
    c, d = _word(data, size - 8) * factor & _MASK, _word(data, size - 16) * _K2 & _MASK
    return _joined(
        (_rotated(a + b, 43) + _rotated(c, 30) + d) & _MASK,
        (a + _rotated(b + _K2, 18) + c) & _MASK,
        factor,
    )


def _up_to_64(data: bytes) -> int:
    size = len(data)
    factor = (_K2 + size * 2) & _MASK
    a, b = _word(data, 0) * _K2 & _MASK, _word(data, 8)
    c, d = _word(data, size - 8) * factor & _MASK, _word(data, size - 16) * _K2 & _MASK
    y = (_rotated(a + b, 43) + _rotated(c, 30) + d) & _MASK
    z = _joined(y, (a + _rotated(b + _K2, 18) + c) & _MASK, factor)
    e, f = _word(data, 16) * factor & _MASK, _word(data, 24)
    g = (y + _word(data, size - 32)) * factor & _MASK
    h = (z + _word(data, size - 24)) * factor & _MASK
    return _joined(
        (_rotated(e + f, 43) + _rotated(g, 30) + h) & _MASK,
        (e + _rotated(f + a, 18) + g) & _MASK,
        factor,
    )


def _pair(data: bytes, place: int, a: int, b: int) -> tuple[int, int]:
    w, x, y, z = (_word(data, place + 8 * k) for k in range(4))
    a = (a + w) & _MASK
    b = _rotated(b + a + z, 21)
    c = a
    a = (a + x + y) & _MASK
    return (a + z) & _MASK, (b + _rotated(a, 44) + c) & _MASK


def _longer(data: bytes) -> int:
    size = len(data)
    x, y = 81, (81 * _K1 + 113) & _MASK
    z = _mixed(y * _K2 + 113) * _K2 & _MASK
    v, w = (0, 0), (0, 0)
    x = (x * _K2 + _word(data, 0)) & _MASK

    def round_of(place: int, factor: int, weight: int) -> None:
        nonlocal x, y, z, v, w
        x = _rotated(x + y + v[0] + _word(data, place + 8), 37) * factor & _MASK
        y = _rotated(y + v[1] + _word(data, place + 48), 42) * factor & _MASK
        x ^= w[1] * weight & _MASK
        y = (y + v[0] * weight + _word(data, place + 40)) & _MASK
        z = _rotated(z + w[0], 33) * factor & _MASK
        v = _pair(data, place, v[1] * factor, x + w[0])
        w = _pair(data, place + 32, z + w[1], y + _word(data, place + 16))
        z, x = x, z

    for place in range(0, (size - 1) // 64 * 64, 64):
        round_of(place, _K1, 1)
    factor = (_K1 + ((z & 0xFF) << 1)) & _MASK
    w = ((w[0] + ((size - 1) & 63)) & _MASK, w[1])
    v = ((v[0] + w[0]) & _MASK, v[1])
    w = ((w[0] + v[0]) & _MASK, w[1])
    round_of(size - 64, factor, 9)
    return _joined(
        (_joined(v[0], w[0], factor) + _mixed(y) * _K0 + z) & _MASK,
        (_joined(v[1], w[1], factor) + x) & _MASK,
        factor,
    )
