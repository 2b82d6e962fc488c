"""``tf.dtypes``: element types, and arrays of other ones."""

from typing import TYPE_CHECKING

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
    "cast",
    "complex",
    "double",
    "half",
    "saturate_cast",
]

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__)
