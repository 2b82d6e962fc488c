"""The mean of the islands' contributions: bitwise the same for all of them, in any order of arrival."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["average"]

Arrays = Sequence[np.ndarray[Any, Any]]


def average(contributions: Sequence[Arrays]) -> list[np.ndarray[Any, Any]]:
    """Returns the mean of the arrays of several islands, summed in the order of the islands.

    Dtypes of less than 32 bits are summed in float32, and rounded once.

    >>> import numpy as np
    >>> from stratagem._src.control_plane.island_server.average import average
    >>> average([[np.float32([1, 2])], [np.float32([3, 6])]])
    [array([2., 4.], dtype=float32)]
    """
    if len(contributions) == 1:
        return list(contributions[0])
    return [_mean(parts) for parts in zip(*contributions, strict=True)]


def _mean(parts: Arrays) -> np.ndarray[Any, Any]:
    dtype = parts[0].dtype
    total = parts[0].astype(np.float32 if dtype.itemsize < 4 else dtype)
    for part in parts[1:]:
        total += part
    total /= len(parts)
    return total.astype(dtype, copy=False)
