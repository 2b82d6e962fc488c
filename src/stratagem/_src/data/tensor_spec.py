"""``TensorSpec``: the shape and type of one component of an element."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from stratagem._src.core.tensor_shape import TensorShape

__all__ = ["TensorSpec", "as_dtype"]

STRING = np.dtype(object)


def as_dtype(dtype: Any) -> np.dtype[Any]:
    """Returns the NumPy type of ``dtype``; every kind of string is ``object``, holding bytes."""
    if isinstance(dtype, str) and dtype == "string":
        return STRING
    resolved = np.dtype(dtype)
    return STRING if resolved.kind in "SU" else resolved


@dataclass(frozen=True, init=False)
class TensorSpec:
    """The shape, type and optional name of an array, without its values.

    Strings have the type ``object`` and hold ``bytes``; ``"string"``, ``str`` and ``bytes`` name
    it.

    >>> from stratagem.data import TensorSpec
    >>> TensorSpec([None, 28], "float32")
    TensorSpec(shape=(None, 28), dtype=float32, name=None)
    """

    shape: TensorShape
    dtype: np.dtype[Any]
    name: str | None

    def __init__(
        self, shape: Iterable[int | None] | None, dtype: Any = np.float32, name: str | None = None
    ) -> None:
        object.__setattr__(self, "shape", TensorShape(shape))
        object.__setattr__(self, "dtype", as_dtype(dtype))
        object.__setattr__(self, "name", name)

    @classmethod
    def of(cls, value: Any) -> TensorSpec:
        """Returns the spec of an array, a NumPy scalar or a ``bytes`` object."""
        if isinstance(value, bytes):
            return cls((), STRING)
        return cls(value.shape, value.dtype)

    def is_compatible_with(self, value: Any) -> bool:
        """Returns whether an array, or another spec, fits this shape and type."""
        that = value if isinstance(value, TensorSpec) else TensorSpec.of(value)
        return self.dtype == that.dtype and self.shape.is_compatible_with(that.shape)

    def most_general_with(self, other: TensorSpec) -> TensorSpec | None:
        """Returns the narrowest spec that covers both, or ``None`` if their types differ."""
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
