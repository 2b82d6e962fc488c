"""``Combination``: what becomes of arrays that are exchanged."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any

import ml_dtypes
import numpy as np

__all__ = ["Combination", "combine"]


class Combination(IntEnum):
    """What becomes of the arrays that devices and processes bring.

    Of ``SCATTER`` each device gets its part of the sum, of all others everybody gets the same.
    """

    SUM = 0
    MIN = 1
    MAX = 2
    GATHER = 3
    SCATTER = 4

    def size(self, num_elements: int, num_devices: int) -> int:
        """Returns how many elements become of an array's, of which each of the devices brings one."""
        if self is Combination.GATHER:
            return num_elements * num_devices
        return num_elements // num_devices if self is Combination.SCATTER else num_elements


_REDUCTIONS: dict[Combination, Callable[..., Any]] = {
    Combination.SUM: np.add,
    Combination.MIN: np.minimum,
    Combination.MAX: np.maximum,
    Combination.SCATTER: np.add,
}


def combine(
    combination: Combination,
    brought: Sequence[np.ndarray[Any, Any]],
    result: np.ndarray[Any, Any],
) -> None:
    """Fills a result with what becomes of flat arrays, in their order; of those to scatter, their sum."""
    if combination is Combination.GATHER or len(brought) == 1:
        np.concatenate(brought, out=result)
        return
    function = _REDUCTIONS[combination]
    if function is np.add and result.dtype in _HALVES:
        _add_halves(brought, result)
        return
    function(brought[0], brought[1], out=result)
    for other in brought[2:]:
        function(result, other, out=result)


_HALVES = (np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16))
_BLOCK = 16 * 1024
"""Elements: what is computed on the way stays in the processor's cache."""


def _add_halves(brought: Sequence[np.ndarray[Any, Any]], result: np.ndarray[Any, Any]) -> None:
    """Adds numbers of 16 bits in float32, and rounds once."""
    total = np.empty(min(_BLOCK, result.size), np.float32)
    for start in range(0, result.size, _BLOCK):
        block = slice(start, start + _BLOCK)
        sums = total[: result[block].size]
        sums[:] = brought[0][block]
        for other in brought[1:]:
            np.add(sums, other[block], out=sums, dtype=np.float32)
        _round_to(result[block], sums)


def _round_to(result: np.ndarray[Any, Any], sums: np.ndarray[Any, Any]) -> None:
    if result.dtype == np.float16 or np.isnan(sums).any():
        with np.errstate(over="ignore"):  # infinite, as in any other sum
            result[:] = sums
        return
    # To the nearest, ties to even, at half the cost of a conversion: bfloat16 is float32's upper half.
    bits = sums.view(np.uint32)
    rounding = bits >> np.uint32(16)
    rounding &= np.uint32(1)
    rounding += np.uint32(0x7FFF)
    bits += rounding
    result.view(np.uint16)[:] = bits.view(np.uint16)[_UPPER_HALF::2]


_UPPER_HALF = 1 if sys.byteorder == "little" else 0
