"""Random numbers of ``jax.random`` computed by NumPy: the same bits, without compiling a program.

JAX compiles a program for each shape, 0.3 to 0.5 s of processor time. A model has a dozen shapes, and needs
each once, for initial values. Threefry is integer arithmetic on a key and the number of an element, and the
steps from bits to a number are exact but for one: XLA's CPU compiler rounds ``floats * range + low`` once
where the processor can (a fused multiply-add). A program of a few elements shows whether it does, and where
it rounds otherwise nothing is computed here. Doubles make the sum exactly if ``low`` is ``-high`` or 0.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import numpy as np

__all__ = ["KNOWN_ROUNDING", "host_normal", "host_truncated_normal", "host_uniform"]

_Array = np.ndarray[Any, Any]

KNOWN_ROUNDING = jax.__version_info__ < (0, 11)
"""Whether XLA's last bits are known on CPU. In later versions those of ``erf_inv`` depend on an element's
place in its array, and those of a QR decomposition are not those of SciPy's LAPACK any more."""

_MAX_SIZE = 1 << 22
"""The largest number of elements: 80 ms here. Above it, a compiled program is worth its compilation."""

_CHUNK = 1 << 14  # elements whose intermediate results stay in the processor's cache
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)
_ONE = np.uint32(0x3F800000)  # the bits of 1.0: below them is the mantissa
_MANTISSA_BITS = 23
_SQRT2 = np.float32(math.sqrt(2))


def host_uniform(key: _Array, shape: tuple[int, ...], low: float, high: float) -> _Array | None:
    """Returns what ``jax.random.uniform`` returns on CPU in float32; ``None`` if that is not certain.

    Args:
        key: Two ``uint32``.
        shape: The shape of the result.
        low: The lower bound.
        high: The upper bound.
    """
    lowest, highest = np.float32(low), np.float32(high)
    if lowest != -highest and lowest != 0:
        return None
    return _uniform(key, shape, lowest, highest)


def host_normal(key: _Array, shape: tuple[int, ...]) -> _Array | None:
    """Returns what ``jax.random.normal`` returns on CPU in float32; ``None`` if that is not certain."""
    if not KNOWN_ROUNDING:
        return None
    # -1 itself would become minus infinity. The sum is exact: its terms are multiples of 2**-24 below 2.
    above = np.nextafter(np.float32(-1), np.float32(0))
    uniform = _uniform(key, shape, above, np.float32(1))
    return None if uniform is None else _inverse_error_function(uniform)


def host_truncated_normal(key: _Array, shape: tuple[int, ...], bound: float) -> _Array | None:
    """Returns ``jax.random.truncated_normal`` between ``-bound`` and ``bound``; ``None`` if not certain."""
    if not KNOWN_ROUNDING:
        return None
    limit = np.float32(bound)
    edge = _edge(float(limit))
    uniform = host_uniform(key, shape, -edge, edge)
    if uniform is None:
        return None
    infinity = np.float32(np.inf)
    inside = np.nextafter(-limit, infinity), np.nextafter(limit, -infinity)
    return np.clip(_inverse_error_function(uniform), *inside)


def _uniform(
    key: _Array, shape: tuple[int, ...], lowest: np.float32, highest: np.float32
) -> _Array | None:
    """Returns numbers between bounds whose difference, scaled and shifted, is exact in doubles."""
    size = math.prod(shape)
    if not shape or not 0 < size <= _MAX_SIZE or np.shape(key) != (2,):
        return None
    if not _is_known_generator() or (fused := _rounds_once()) is None:
        return None
    width = highest - lowest
    result = np.empty(size, np.float32)
    for start in range(0, size, _CHUNK):
        bits = _threefry(key, np.arange(start, min(start + _CHUNK, size), dtype=np.uint32))
        bits >>= np.uint32(32 - _MANTISSA_BITS)
        bits |= _ONE
        floats = bits.view(np.float32) - np.float32(1)
        if fused:
            numbers = (floats.astype(np.float64) * float(width) + float(lowest)).astype(np.float32)
        else:
            numbers = floats * width + lowest
        np.maximum(numbers, lowest, out=result[start : start + _CHUNK])
    return result.reshape(shape)


def _threefry(key: _Array, x1: _Array) -> _Array:
    """Returns random bits for the elements with these numbers, which it overwrites."""
    first, second = np.uint32(key[0]), np.uint32(key[1])
    keys = (first, second, first ^ second ^ _PARITY)
    x0, shifted = np.full_like(x1, keys[0]), np.empty_like(x1)
    with np.errstate(over="ignore"):  # scalars warn where arrays wrap around
        x1 += keys[1]
        for turn in range(5):
            for rotation in _ROTATIONS[turn % 2]:
                x0 += x1
                np.left_shift(x1, np.uint32(rotation), out=shifted)
                x1 >>= np.uint32(32 - rotation)
                x1 |= shifted
                x1 ^= x0
            x0 += keys[(turn + 1) % 3]
            x1 += keys[(turn + 2) % 3] + np.uint32(turn + 1)
    return x0 ^ x1


def _inverse_error_function(uniform: _Array) -> _Array:
    """Returns ``sqrt(2) * erf_inv(uniform)``, by one program of XLA for arrays of any shape."""
    flat = uniform.reshape(-1)
    result = np.empty_like(flat)
    program = _normal_program()
    for start in range(0, flat.size, _CHUNK):
        chunk = flat[start : start + _CHUNK]
        padded = np.zeros(_CHUNK, np.float32)
        padded[: chunk.size] = chunk
        with jax.ensure_compile_time_eval():
            result[start : start + _CHUNK] = np.asarray(program(padded))[: chunk.size]
    return result.reshape(uniform.shape)


@functools.cache
def _edge(limit: float) -> float:
    """Returns ``erf(limit / sqrt(2))`` as XLA computes it: the last bit depends on its version."""
    with jax.ensure_compile_time_eval():
        return float(jax.jit(lambda limit: jax.lax.erf(limit / _SQRT2))(np.float32(limit)))


@functools.cache
def _normal_program() -> Any:
    return jax.jit(lambda uniform: _SQRT2 * jax.lax.erf_inv(uniform))


def _is_known_generator() -> bool:
    """Returns whether JAX draws on the CPU, by the generator that is computed here."""
    config: Any = jax.config
    device = config.jax_default_device
    platform = getattr(device, "platform", device) or jax.default_backend()
    return (
        platform == "cpu"
        and config.jax_threefry_partitionable
        and config.jax_default_prng_impl == "threefry2x32"
    )


@functools.cache
def _rounds_once() -> bool | None:
    """Returns whether XLA rounds ``x * y + z`` once; ``None`` if neither that nor twice."""
    x = np.linspace(0, 1, 64, dtype=np.float32)
    y, z = np.float32(0.3), np.float32(-0.15)
    # A model may be built while a function is traced, also under a gradient tape.
    with jax.ensure_compile_time_eval():
        computed = np.asarray(jax.jit(lambda x, y, z: x * y + z)(x, y, z))
    once = (x.astype(np.float64) * float(y) + float(z)).astype(np.float32)
    if np.array_equal(computed, once):
        return True
    return False if np.array_equal(computed, x * y + z) else None
