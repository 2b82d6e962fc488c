"""Guards against silent truncation: JAX converts 64-bit integers to 32 bits unless x64 is enabled."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import ArrayLike

__all__ = ["check_fits", "fits", "guard_int64"]

_WIDE = (np.dtype(np.int64), np.dtype(np.uint64))
_HOST_TYPES = (np.ndarray, np.generic)


def guard_int64(value: ArrayLike) -> Any:
    """Returns ``value``, which is about to become a JAX array, after checking that its integers fit.

    Raises:
        InvalidArgumentError: If it is a NumPy array or scalar with integers that do not fit the dtype to
            which JAX would convert it.

    >>> guard_int64(np.int64(7))
    np.int64(7)
    """
    if isinstance(value, _HOST_TYPES) and value.dtype in _WIDE:
        check_fits(value, jax.dtypes.canonicalize_dtype(value.dtype))
    return value


def check_fits(value: ArrayLike, dtype: np.dtype[Any]) -> None:
    """Raises ``InvalidArgumentError`` if the integers of a NumPy array do not fit ``dtype``."""
    if fits(value, dtype):
        return
    raise InvalidArgumentError(
        f"{value.dtype.name} values from {value.min()} to {value.max()} do not fit {dtype.name}. "
        "Use a wider dtype; 64 bits need JAX's 64-bit mode: "
        "jax.config.update('jax_enable_x64', True)."
    )


def fits(value: ArrayLike, dtype: np.dtype[Any]) -> bool:
    """Returns whether the integers of a NumPy array fit ``dtype``.

    >>> fits(np.array([1, 300]), np.dtype(np.int8))
    False
    """
    if value.dtype == dtype or value.dtype.kind not in "iu" or dtype.kind not in "iu":
        return True
    limits = np.iinfo(dtype)
    return not value.size or bool(value.min() >= limits.min and value.max() <= limits.max)
