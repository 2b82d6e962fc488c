"""``CollectiveOp``: the collectives of the CPU backends, and the arithmetic that they need."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any

import ml_dtypes
import numpy as np

__all__ = ["CollectiveOp", "combine"]


class CollectiveOp(IntEnum):
    """A collective over all devices of all processes.

    ``SUM``, ``MIN`` and ``MAX`` are all-reduces and ``GATHER`` is an all-gather: all devices get the same
    result. ``SCATTER`` is a reduce-scatter: each device gets its shard of the sum.
    """

    SUM = 0
    MIN = 1
    MAX = 2
    GATHER = 3
    SCATTER = 4

    def size(self, num_elements: int, num_devices: int) -> int:
        """Returns the size of a result, given the size of each device's operand and all devices."""
        if self is CollectiveOp.GATHER:
            return num_elements * num_devices
        return num_elements // num_devices if self is CollectiveOp.SCATTER else num_elements


_REDUCTIONS: dict[CollectiveOp, Callable[..., Any]] = {
    CollectiveOp.SUM: np.add,
    CollectiveOp.MIN: np.minimum,
    CollectiveOp.MAX: np.maximum,
    CollectiveOp.SCATTER: np.add,
}


def combine(
    op: CollectiveOp,
    brought: Sequence[np.ndarray[Any, Any]],
    result: np.ndarray[Any, Any],
) -> None:
    """Combines flat arrays in order into a result. For ``SCATTER`` that is the full sum."""
    if op is CollectiveOp.GATHER or len(brought) == 1:
        np.concatenate(brought, out=result)
        return
    function = _REDUCTIONS[op]
    if function is np.add and result.dtype in _HALVES:
        _add_halves(brought, result)
        return
    function(brought[0], brought[1], out=result)
    for other in brought[2:]:
        function(result, other, out=result)


_HALVES = (np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16))
_BLOCK = 16 * 1024
"""Elements. The intermediate sums of a block fit into the CPU cache."""


def _add_halves(brought: Sequence[np.ndarray[Any, Any]], result: np.ndarray[Any, Any]) -> None:
    """Adds 16-bit floats in float32, and rounds once."""
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
    # Rounds to nearest, ties to even, at half the cost of astype: bfloat16 is the upper half of float32.
    bits = sums.view(np.uint32)
    rounding = bits >> np.uint32(16)
    rounding &= np.uint32(1)
    rounding += np.uint32(0x7FFF)
    bits += rounding
    result.view(np.uint16)[:] = bits.view(np.uint16)[_UPPER_HALF::2]


_UPPER_HALF = 1 if sys.byteorder == "little" else 0
