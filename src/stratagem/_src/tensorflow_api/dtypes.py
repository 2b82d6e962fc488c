"""``tf.dtypes``: dtypes and casts."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.core.dtypes import is_host_only
from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.indexed_slices import IndexedSlices
from stratagem._src.core.int64_guard import guard_int64
from stratagem._src.core.types import ArrayLike, DTypeLike, Tensor
from stratagem._src.tensorflow_api import conversion
from stratagem._src.tensorflow_api.conversion import (
    as_tensor,
    canonical_dtype,
    is_complex,
    is_float,
    matched,
)
from stratagem._src.tensorflow_api.host_tensor import HostTensor, is_size

__all__ = [
    "DType",
    "as_dtype",
    "cast",
    "complex",
    "double",
    "half",
    "newaxis",
    "saturate_cast",
]


def as_dtype(type_value: DTypeLike) -> np.dtype[Any]:
    """Returns the dtype for a name, a NumPy type or a Python type.

    Differs from TensorFlow: dtypes are NumPy dtypes, without ``is_floating`` and similar attributes.

    >>> as_dtype("float32")
    dtype('float32')
    """
    return conversion.as_dtype(type_value)


def cast(x: ArrayLike, dtype: DTypeLike, name: str | None = None) -> Tensor:
    """Converts elements to another dtype: floats are truncated, booleans become 0 and 1.

    Differs from TensorFlow: a float out of the integer dtype's range becomes the nearest integer in range,
    and NaN becomes 0; in TensorFlow the result depends on the device. 64-bit dtypes have 32 bits in JAX's
    default mode.

    JAX equivalent: ``jax.numpy.astype``.

    >>> cast([1.7, -1.7], "int32")
    Array([ 1, -1], dtype=int32)
    """
    if isinstance(x, IndexedSlices):
        return IndexedSlices(cast(x.values, dtype), x.indices, x.dense_shape)
    wanted = canonical_dtype(dtype)
    if is_size(x) and wanted.kind in "iu":
        return HostTensor.of(guard_int64(np.asarray(x)).astype(wanted))
    array = as_tensor(x)
    if is_host_only(wanted) != is_host_only(array.dtype):
        raise InvalidArgumentError(
            f"tf.cast cannot convert {array.dtype} to {wanted}. Use tf.strings.to_number or "
            "tf.strings.as_string."
        )
    if is_host_only(wanted):
        return array
    if is_complex(array.dtype) and not is_complex(wanted):
        array = jnp.real(array)
    if wanted == np.bool_:
        return array != 0
    return array.astype(wanted)


def saturate_cast(value: ArrayLike, dtype: DTypeLike, name: str | None = None) -> jax.Array:
    """Converts elements to another dtype, clamped to its range.

    >>> saturate_cast([300.0, -5.0], "uint8")
    Array([255,   0], dtype=uint8)
    """
    array = as_tensor(value)
    wanted = canonical_dtype(dtype)
    if is_complex(array.dtype):
        array = jnp.real(array)
    if not (is_float(wanted) or wanted.kind in "iu"):
        return cast(array, wanted)
    limits: Any = jnp.finfo(wanted) if is_float(wanted) else jnp.iinfo(wanted)
    own: Any = jnp.finfo(array.dtype) if is_float(array.dtype) else jnp.iinfo(array.dtype)
    low, high = max(limits.min, own.min), min(limits.max, own.max)
    return jnp.clip(array, jnp.asarray(low, array.dtype), jnp.asarray(high, array.dtype)).astype(
        wanted
    )


def complex(real: ArrayLike, imag: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns complex numbers from real and imaginary parts.

    >>> complex(1.0, 2.0)
    Array(1.+2.j, dtype=complex64)
    """
    parts = matched("complex", real, imag)
    if parts[0].dtype not in (np.float32, np.float64):
        raise TypeError(f"tf.complex needs parts of float32 or float64, got {parts[0].dtype.name}.")
    return jax.lax.complex(*jnp.broadcast_arrays(*parts))


DType = np.dtype
"""The class of dtypes: NumPy's."""
half: np.dtype[np.float16] = np.dtype(np.float16)
double: np.dtype[np.float64] = np.dtype(np.float64)
newaxis: None = None
