"""``tf.dtypes``: dtypes and casts."""

from typing import TYPE_CHECKING

from stratagem._src.core.dtypes import (
    bfloat16,
    complex64,
    complex128,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    string,
    uint8,
    uint16,
    uint32,
    uint64,
)
from stratagem._src.core.dtypes import bool_ as bool  # tf.dtypes.bool; the builtin is not used here
from stratagem._src.core.lazy_names import lazy_names
from stratagem._src.tensorflow_api.dtypes import (
    DType,
    as_dtype,
    cast,
    complex,
    double,
    half,
    saturate_cast,
)

__all__ = [
    "DType",
    "as_dtype",
    "bfloat16",
    "bool",
    "cast",
    "complex",
    "complex64",
    "complex128",
    "double",
    "float16",
    "float32",
    "float64",
    "half",
    "int8",
    "int16",
    "int32",
    "int64",
    "saturate_cast",
    "string",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
]

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__)
