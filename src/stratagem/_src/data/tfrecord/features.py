"""Feature specs for parsing a ``tf.train.Example``: fixed and variable length."""

from __future__ import annotations

from typing import Any

import numpy as np

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.tensor_shape import TensorShape
from stratagem._src.core.types import ArrayLike, DTypeLike
from stratagem._src.data.conversion import to_array
from stratagem._src.data.tensor_spec import STRING, as_dtype

__all__ = ["FixedLenFeature", "FixedLenSequenceFeature", "VarLenFeature"]

_DTYPES = (STRING, np.dtype(np.int64), np.dtype(np.float32))


def _feature_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    resolved = as_dtype(dtype)
    if resolved not in _DTYPES:
        raise InvalidArgumentError(
            f"The dtype of a feature must be int64, float32 or string, got {resolved}. "
            "Convert it after parsing."
        )
    return resolved


class FixedLenFeature:
    """A feature with a known number of values.

    >>> from stratagem.io import FixedLenFeature
    >>> FixedLenFeature([2], "float32").shape
    TensorShape([2])

    Args:
        shape: The shape of the values.
        dtype: int64, float32 or string.
        default_value: The value for records without the feature; by default such a record is an error.
    """

    def __init__(self, shape: Any, dtype: DTypeLike, default_value: ArrayLike = None) -> None:
        self.shape: TensorShape = TensorShape(shape)
        self.dtype: np.dtype[Any] = _feature_dtype(dtype)
        if not self.shape.is_fully_defined():
            raise InvalidArgumentError(
                f"The shape of a FixedLenFeature must be fully known, got {self.shape}. "
                "Use VarLenFeature for a variable number of values."
            )
        self.default: np.ndarray[Any, Any] | None = None
        if default_value is not None:
            values = to_array(default_value).astype(self.dtype)
            try:
                self.default = np.broadcast_to(values, tuple(self.shape))  # type: ignore[arg-type]
            except ValueError:
                raise InvalidArgumentError(
                    f"default_value must fit the shape {self.shape}, got the shape {values.shape}."
                ) from None


class VarLenFeature:
    """A feature with any number of values, or none.

    >>> from stratagem.io import VarLenFeature
    >>> VarLenFeature("int64").dtype
    dtype('int64')

    Args:
        dtype: int64, float32 or string.
    """

    def __init__(self, dtype: DTypeLike) -> None:
        self.dtype: np.dtype[Any] = _feature_dtype(dtype)


class FixedLenSequenceFeature:
    """A feature with any number of rows of one shape.

    >>> from stratagem.io import FixedLenSequenceFeature
    >>> FixedLenSequenceFeature([4], "float32", allow_missing=True).shape
    TensorShape([4])

    Args:
        shape: The shape of a row.
        dtype: int64, float32 or string.
        allow_missing: Whether a record without the feature has no rows; true is required but in a
            ``tf.train.SequenceExample``.
        default_value: The padding value in a batch where other records have more rows; zero or the empty
            string by default.
    """

    def __init__(
        self,
        shape: Any,
        dtype: DTypeLike,
        allow_missing: bool = False,
        default_value: ArrayLike = None,
    ) -> None:
        self.shape: TensorShape = TensorShape(shape)
        self.dtype: np.dtype[Any] = _feature_dtype(dtype)
        if not self.shape.is_fully_defined():
            raise InvalidArgumentError(
                f"The shape of a row of a FixedLenSequenceFeature must be fully known, got {self.shape}."
            )
        self.allow_missing = allow_missing
        filling = b"" if self.dtype == STRING else 0
        self.default: Any = filling if default_value is None else to_array(default_value)[()]
