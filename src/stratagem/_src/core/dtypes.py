"""The public dtypes, as NumPy dtypes that JAX accepts."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from stratagem._src.core.types import DTypeLike

__all__ = [
    "bfloat16",
    "bool_",
    "complex64",
    "complex128",
    "float16",
    "float32",
    "float64",
    "int8",
    "int16",
    "int32",
    "int64",
    "is_host_only",
    "string",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
]

bool_: np.dtype[np.bool_] = np.dtype(np.bool_)
int8: np.dtype[np.int8] = np.dtype(np.int8)
int16: np.dtype[np.int16] = np.dtype(np.int16)
int32: np.dtype[np.int32] = np.dtype(np.int32)
int64: np.dtype[np.int64] = np.dtype(np.int64)
uint8: np.dtype[np.uint8] = np.dtype(np.uint8)
uint16: np.dtype[np.uint16] = np.dtype(np.uint16)
uint32: np.dtype[np.uint32] = np.dtype(np.uint32)
uint64: np.dtype[np.uint64] = np.dtype(np.uint64)
bfloat16: np.dtype[np.generic] = np.dtype(ml_dtypes.bfloat16)
float16: np.dtype[np.float16] = np.dtype(np.float16)
float32: np.dtype[np.float32] = np.dtype(np.float32)
float64: np.dtype[np.float64] = np.dtype(np.float64)
complex64: np.dtype[np.complex64] = np.dtype(np.complex64)
complex128: np.dtype[np.complex128] = np.dtype(np.complex128)
string: np.dtype[np.object_] = np.dtype(np.object_)  # of bytes; arrays of it stay on the host


def is_host_only(dtype: DTypeLike) -> bool:
    """Returns whether arrays of ``dtype`` cannot be on a device: strings, bytes and objects.

    >>> is_host_only(np.dtype("S3")), is_host_only(float32)
    (True, False)
    """
    # JAX's extended dtypes, such as those of random keys, are not NumPy dtypes.
    return isinstance(dtype, np.dtype) and dtype.kind in "OSU"
