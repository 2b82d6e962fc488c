"""Whole numbers of 64 bits, which JAX cuts to 32 unless told otherwise: refused if they do not fit."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from stratagem._src.core.errors import InvalidArgumentError

__all__ = ["check_fits", "fits", "narrowed"]

_WIDE = (np.dtype(np.int64), np.dtype(np.uint64))
_HOST_TYPES = (np.ndarray, np.generic)


def narrowed(value: Any) -> Any:
    """Returns ``value``, which is about to become a JAX array.

    Raises:
        InvalidArgumentError: If it is a NumPy array or scalar with numbers that do not fit the dtype
            which JAX uses in place of its own.

    >>> narrowed(np.int64(7))
    np.int64(7)
    """
    if isinstance(value, _HOST_TYPES) and value.dtype in _WIDE:
        check_fits(value, jax.dtypes.canonicalize_dtype(value.dtype))
    return value


def check_fits(value: Any, dtype: np.dtype[Any]) -> None:
    """Raises ``InvalidArgumentError`` if whole numbers of NumPy would change as ``dtype``."""
    if fits(value, dtype):
        return
    raise InvalidArgumentError(
        f"{value.dtype.name} values from {value.min()} to {value.max()} do not fit {dtype.name}. "
        "Use a wider dtype; 64 bits need JAX's 64-bit mode: "
        "jax.config.update('jax_enable_x64', True)."
    )


def fits(value: Any, dtype: np.dtype[Any]) -> bool:
    """Returns whether whole numbers of NumPy stay what they are as ``dtype``.

    >>> fits(np.array([1, 300]), np.dtype(np.int8))
    False
    """
    if value.dtype == dtype or value.dtype.kind not in "iu" or dtype.kind not in "iu":
        return True
    limits = np.iinfo(dtype)
    return not value.size or bool(value.min() >= limits.min and value.max() <= limits.max)
