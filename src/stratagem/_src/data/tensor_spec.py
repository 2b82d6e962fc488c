"""``TensorSpec``: the shape and dtype of one component of an element."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from stratagem._src.core.tensor_shape import TensorShape
from stratagem._src.core.types import ArrayLike, DTypeLike

__all__ = ["TensorSpec", "as_dtype"]

STRING = np.dtype(object)


def as_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    """Returns the NumPy dtype of ``dtype``; all string types map to ``object`` with ``bytes`` items."""
    if isinstance(dtype, str) and dtype == "string":
        return STRING
    resolved = np.dtype(dtype)
    return STRING if resolved.kind in "SU" else resolved


@dataclass(frozen=True, init=False)
class TensorSpec:
    """The shape, dtype and optional name of an array, without its values.

    Strings have the dtype ``object`` with ``bytes`` items; ``"string"``, ``str`` and ``bytes`` are
    accepted for it.

    >>> from stratagem.data import TensorSpec
    >>> TensorSpec([None, 28], "float32")
    TensorSpec(shape=(None, 28), dtype=float32, name=None)
    """

    shape: TensorShape
    dtype: np.dtype[Any]
    name: str | None

    def __init__(
        self,
        shape: Iterable[int | None] | None,
        dtype: DTypeLike = np.float32,
        name: str | None = None,
    ) -> None:
        object.__setattr__(self, "shape", TensorShape(shape))
        object.__setattr__(self, "dtype", as_dtype(dtype))
        object.__setattr__(self, "name", name)

    @classmethod
    def of(cls, value: ArrayLike) -> TensorSpec:
        """Returns the spec of an array, a NumPy scalar or a ``bytes`` object."""
        if isinstance(value, bytes):
            return cls((), STRING)
        return cls(value.shape, value.dtype)

    def is_compatible_with(self, value: ArrayLike) -> bool:
        """Returns whether an array, or another spec, matches this shape and dtype."""
        that = value if isinstance(value, TensorSpec) else TensorSpec.of(value)
        return self.dtype == that.dtype and self.shape.is_compatible_with(that.shape)

    def most_general_with(self, other: TensorSpec) -> TensorSpec | None:
        """Returns the most specific spec compatible with both, or ``None`` if their dtypes differ."""
        if self.dtype != other.dtype:
            return None
        if self.shape.rank != other.shape.rank:
            return TensorSpec(None, self.dtype)
        sizes = [a if a == b else None for a, b in zip(self.shape, other.shape, strict=True)]
        rank_known = self.shape.rank is not None
        return TensorSpec(sizes if rank_known else None, self.dtype)

    def batched(self, size: int | None) -> TensorSpec:
        """Returns this spec with a leading dimension of ``size``."""
        return TensorSpec(TensorShape([size]).concatenate(self.shape), self.dtype)

    def row(self) -> TensorSpec:
        """Returns this spec without its leading dimension."""
        if self.shape.rank is None:
            return self
        return TensorSpec(self.shape[1:], self.dtype)

    def __repr__(self) -> str:
        dtype = "string" if self.dtype == STRING else self.dtype.name
        return f"TensorSpec(shape={self.shape}, dtype={dtype}, name={self.name!r})"
