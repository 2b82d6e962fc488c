"""``Combination``: what becomes of arrays that are exchanged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any

import numpy as np

__all__ = ["Combination", "combine"]


class Combination(IntEnum):
    """What becomes of the arrays that devices and processes bring."""

    SUM = 0
    MIN = 1
    MAX = 2
    GATHER = 3


_REDUCTIONS: dict[Combination, Callable[..., Any]] = {
    Combination.SUM: np.add,
    Combination.MIN: np.minimum,
    Combination.MAX: np.maximum,
}


def combine(
    combination: Combination,
    brought: Sequence[np.ndarray[Any, Any]],
    result: np.ndarray[Any, Any],
) -> None:
    """Fills a result with what becomes of flat arrays, in their order."""
    if combination is Combination.GATHER or len(brought) == 1:
        np.concatenate(brought, out=result)
        return
    function = _REDUCTIONS[combination]
    function(brought[0], brought[1], out=result)
    for other in brought[2:]:
        function(result, other, out=result)
