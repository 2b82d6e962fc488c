"""``Combination``: what becomes of arrays that are exchanged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any

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
    function(brought[0], brought[1], out=result)
    for other in brought[2:]:
        function(result, other, out=result)
