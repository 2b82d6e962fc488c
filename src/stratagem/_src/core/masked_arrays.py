"""Rejects NumPy masked arrays, whose mask devices would drop."""

from __future__ import annotations

import numpy as np

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import ArrayLike

__all__ = ["check_not_masked"]


def check_not_masked(value: ArrayLike) -> None:
    """Checks that an array has no mask: it would be dropped, and masked elements would become normal ones.

    Raises:
        InvalidArgumentError: If it is a ``numpy.ma.MaskedArray``.
    """
    if isinstance(value, np.ma.MaskedArray):
        raise InvalidArgumentError(
            f"An array must have no mask, because devices would drop it, got a numpy.ma.MaskedArray of "
            f"shape {value.shape} with {int(np.sum(value.mask))} masked elements. Pass "
            "array.filled(value), or array.data and np.ma.getmaskarray(array) as two arrays."
        )
