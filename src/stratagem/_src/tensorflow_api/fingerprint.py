"""FarmHash's 64-bit fingerprint, the hash of ``tf.strings.to_hash_bucket_fast``.

Models index embedding rows by this hash, so it must equal TensorFlow's. Names in comments are FarmHash's.
"""

from __future__ import annotations

__all__ = ["fingerprint64"]

_MASK = (1 << 64) - 1
_K0, _K1, _K2 = 0xC3A5C85C97CB3127, 0xB492B66FBE98F273, 0x9AE16A3B2F90404F


def fingerprint64(data: bytes) -> int:
    """Returns the fingerprint of ``data``.

    >>> fingerprint64(b"") == _K2
    True
    """
    if len(data) <= 16:
        return _hash_up_to_16(data)
    if len(data) <= 32:
        return _hash_up_to_32(data)
    if len(data) <= 64:
        return _hash_up_to_64(data)
    return _hash_long(data)


def _word(data: bytes, place: int, size: int = 8) -> int:
    return int.from_bytes(data[place : place + size], "little")


def _rotate_right(value: int, shift: int) -> int:
    value &= _MASK
    return (value >> shift) | (value << (64 - shift)) & _MASK


def _shift_mix(value: int) -> int:
    value &= _MASK
    return value ^ (value >> 47)


def _hash_pair(one: int, other: int, factor: int) -> int:
    # HashLen16.
    first = _shift_mix((one ^ other) * factor)
    return _shift_mix((other ^ first) * factor) * factor & _MASK


def _hash_up_to_16(data: bytes) -> int:
    size = len(data)
    factor = (_K2 + size * 2) & _MASK
    if size >= 8:
        a, b = (_word(data, 0) + _K2) & _MASK, _word(data, size - 8)
        c = (_rotate_right(b, 37) * factor + a) & _MASK
        d = (_rotate_right(a, 25) + b) * factor & _MASK
        return _hash_pair(c, d, factor)
    if size >= 4:
        return _hash_pair(size + (_word(data, 0, 4) << 3), _word(data, size - 4, 4), factor)
    if size > 0:
        y = data[0] + (data[size >> 1] << 8)
        z = size + (data[size - 1] << 2)
        return _shift_mix(y * _K2 ^ z * _K0) * _K2 & _MASK
    return _K2


def _hash_up_to_32(data: bytes) -> int:
    size = len(data)
    factor = (_K2 + size * 2) & _MASK
    a, b = _word(data, 0) * _K1 & _MASK, _word(data, 8)
    c, d = _word(data, size - 8) * factor & _MASK, _word(data, size - 16) * _K2 & _MASK
    return _hash_pair(
        (_rotate_right(a + b, 43) + _rotate_right(c, 30) + d) & _MASK,
        (a + _rotate_right(b + _K2, 18) + c) & _MASK,
        factor,
    )


def _hash_up_to_64(data: bytes) -> int:
    size = len(data)
    factor = (_K2 + size * 2) & _MASK
    a, b = _word(data, 0) * _K2 & _MASK, _word(data, 8)
    c, d = _word(data, size - 8) * factor & _MASK, _word(data, size - 16) * _K2 & _MASK
    y = (_rotate_right(a + b, 43) + _rotate_right(c, 30) + d) & _MASK
    z = _hash_pair(y, (a + _rotate_right(b + _K2, 18) + c) & _MASK, factor)
    e, f = _word(data, 16) * factor & _MASK, _word(data, 24)
    g = (y + _word(data, size - 32)) * factor & _MASK
    h = (z + _word(data, size - 24)) * factor & _MASK
    return _hash_pair(
        (_rotate_right(e + f, 43) + _rotate_right(g, 30) + h) & _MASK,
        (e + _rotate_right(f + a, 18) + g) & _MASK,
        factor,
    )


def _weak_hash(data: bytes, place: int, a: int, b: int) -> tuple[int, int]:
    # WeakHashLen32WithSeeds.
    w, x, y, z = (_word(data, place + 8 * k) for k in range(4))
    a = (a + w) & _MASK
    b = _rotate_right(b + a + z, 21)
    c = a
    a = (a + x + y) & _MASK
    return (a + z) & _MASK, (b + _rotate_right(a, 44) + c) & _MASK


def _hash_long(data: bytes) -> int:
    size = len(data)
    x, y = 81, (81 * _K1 + 113) & _MASK
    z = _shift_mix(y * _K2 + 113) * _K2 & _MASK
    v, w = (0, 0), (0, 0)
    x = (x * _K2 + _word(data, 0)) & _MASK

    def mix_block(place: int, factor: int, weight: int) -> None:
        nonlocal x, y, z, v, w
        x = _rotate_right(x + y + v[0] + _word(data, place + 8), 37) * factor & _MASK
        y = _rotate_right(y + v[1] + _word(data, place + 48), 42) * factor & _MASK
        x ^= w[1] * weight & _MASK
        y = (y + v[0] * weight + _word(data, place + 40)) & _MASK
        z = _rotate_right(z + w[0], 33) * factor & _MASK
        v = _weak_hash(data, place, v[1] * factor, x + w[0])
        w = _weak_hash(data, place + 32, z + w[1], y + _word(data, place + 16))
        z, x = x, z

    for place in range(0, (size - 1) // 64 * 64, 64):
        mix_block(place, _K1, 1)
    factor = (_K1 + ((z & 0xFF) << 1)) & _MASK
    w = ((w[0] + ((size - 1) & 63)) & _MASK, w[1])
    v = ((v[0] + w[0]) & _MASK, v[1])
    w = ((w[0] + v[0]) & _MASK, w[1])
    mix_block(size - 64, factor, 9)
    return _hash_pair(
        (_hash_pair(v[0], w[0], factor) + _shift_mix(y) * _K0 + z) & _MASK,
        (_hash_pair(v[1], w[1], factor) + x) & _MASK,
        factor,
    )
