"""Computes Keras's initializers with NumPy: the same values, without compiling a program for each shape.

The initializers run as they are, with other functions under the names ``random`` and ``ops``.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from types import FunctionType, SimpleNamespace
from typing import Any

import jax
import keras
import numpy as np

from stratagem._src.jax_compat.host_random import (
    KNOWN_ROUNDING,
    host_normal,
    host_truncated_normal,
    host_uniform,
)

__all__ = ["INITIAL_VALUES_VARIABLE", "host_value"]

INITIAL_VALUES_VARIABLE = "STRATAGEM_INITIAL_VALUES"
"""The environment variable that leaves initial values to JAX, with the value ``jax``."""

_Array = np.ndarray[Any, Any]

_INITIALIZERS = (
    keras.initializers.Zeros,
    keras.initializers.Ones,
    keras.initializers.RandomUniform,
    keras.initializers.RandomNormal,
    keras.initializers.TruncatedNormal,
    keras.initializers.VarianceScaling,  # the Glorot, He and LeCun initializers inherit from it
    keras.initializers.Orthogonal,
)
_MAX_TRUNCATION = 2.0  # Keras truncates at two standard deviations


class _NotOnHostError(Exception):
    """NumPy cannot compute what JAX computes."""


def host_value(initializer: object, shape: Sequence[int], dtype: str) -> _Array | None:
    """Returns what an initializer returns; ``None`` if NumPy cannot compute the same."""
    call = _calls().get(type(initializer).__call__)
    if call is None or os.environ.get(INITIAL_VALUES_VARIABLE) == "jax":
        return None
    if not isinstance(getattr(initializer, "seed", 0), int):
        return None  # a generator, whose next state depends on how often it was asked
    try:
        value = call(initializer, tuple(shape), dtype=dtype)
    except (_NotOnHostError, AttributeError):  # the latter if another version of Keras uses more
        return None
    return value if isinstance(value, np.ndarray) and value.dtype.name == dtype else None


@functools.cache
def _calls() -> dict[Any, Callable[..., Any]]:
    """Returns for each ``__call__`` of an initializer the same function that computes with NumPy."""
    found: dict[Any, Callable[..., Any]] = {}
    for initializer in _INITIALIZERS:
        original: Any = initializer.__call__
        names = {**original.__globals__, "random": _RANDOM, "ops": _OPS}
        call = FunctionType(
            original.__code__, names, original.__name__, original.__defaults__, original.__closure__
        )
        call.__kwdefaults__ = original.__kwdefaults__
        found[original] = call
    return found


def _uniform(
    shape: tuple[int, ...], minval: float = 0.0, maxval: float = 1.0, *, dtype: str, seed: int
) -> _Array:
    return _checked(host_uniform(_key(dtype, seed), shape, minval, maxval))


def _normal(
    shape: tuple[int, ...], mean: float = 0.0, stddev: float = 1.0, *, dtype: str, seed: int
) -> _Array:
    return _scaled(host_normal(_key(dtype, seed), shape), mean, stddev)


def _truncated_normal(
    shape: tuple[int, ...], mean: float = 0.0, stddev: float = 1.0, *, dtype: str, seed: int
) -> _Array:
    return _scaled(host_truncated_normal(_key(dtype, seed), shape, _MAX_TRUNCATION), mean, stddev)


def _key(dtype: str, seed: int) -> _Array:
    if dtype != "float32" or not 0 <= seed < 2**32:
        raise _NotOnHostError
    return np.array([seed, 0], np.uint32)


def _scaled(sample: _Array | None, mean: float, stddev: float) -> _Array:
    # As eager JAX does: two programs, so two roundings.
    return _checked(sample) * np.float32(stddev) + np.float32(mean)


def _checked(value: _Array | None) -> _Array:
    if value is None:
        raise _NotOnHostError
    return value


def _qr(matrix: _Array) -> tuple[_Array, _Array]:
    """Returns the decomposition by the library that XLA calls on CPU, SciPy's LAPACK, in the same way."""
    if not KNOWN_ROUNDING:
        raise _NotOnHostError
    # Imported here, because it takes long and few models need it.
    from scipy.linalg import lapack

    query = -1  # for the size of the workspace, which decides how the sums are divided
    _, _, workspace, _ = lapack.sgeqrf(matrix, lwork=query)
    packed, scales, _, info = lapack.sgeqrf(matrix, lwork=int(workspace[0]))
    if info == 0:
        _, workspace, _ = lapack.sorgqr(packed, scales, lwork=query)
        orthogonal, _, info = lapack.sorgqr(packed, scales, lwork=int(workspace[0]))
    if info != 0:
        raise _NotOnHostError
    return np.ascontiguousarray(orthogonal), np.triu(packed[: matrix.shape[1]])


def _filled(fill: Callable[..., _Array]) -> Callable[..., _Array]:
    return lambda shape, dtype: fill(shape, jax.dtypes.canonicalize_dtype(dtype))


_RANDOM = SimpleNamespace(uniform=_uniform, normal=_normal, truncated_normal=_truncated_normal)
_OPS = SimpleNamespace(
    zeros=_filled(np.zeros),
    ones=_filled(np.ones),
    qr=_qr,
    diag=np.diag,
    sign=np.sign,
    transpose=np.transpose,
    reshape=np.reshape,
)
