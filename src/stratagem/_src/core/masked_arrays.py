"""NumPy's masked arrays, whose mask no device keeps."""

from __future__ import annotations

from typing import Any

import numpy as np

from stratagem._src.core.errors import InvalidArgumentError

__all__ = ["check_not_masked"]


def check_not_masked(value: Any) -> None:
    """Checks that an array has no mask, which would be lost, with the masked numbers among the others.

    Raises:
        InvalidArgumentError: If it is a ``numpy.ma.MaskedArray``.
    """
    if isinstance(value, np.ma.MaskedArray):
        raise InvalidArgumentError(
            f"An array must have no mask, because devices keep none, got a numpy.ma.MaskedArray of shape "
            f"{value.shape} with {int(np.sum(value.mask))} masked elements. Give array.filled(value), or "
            "array.data and np.ma.getmaskarray(array) as two arrays."
        )
