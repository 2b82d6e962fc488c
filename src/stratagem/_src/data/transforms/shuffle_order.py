"""The order of a shuffle buffer: pure arithmetic on indices.

The buffer has ``buffer_size`` slots, filled with the first elements. Emission ``t`` takes the
element in a random slot and replaces it by element ``buffer_size + t``. When the input ends, the remaining
elements follow in a random permutation. So with a buffer as large as the input the order is a uniform
permutation.
"""

from __future__ import annotations

import numpy as np

from stratagem._src.core.types import ArrayLike
from stratagem._src.data.plan.random_access import Indices

__all__ = ["BLOCK", "ShuffleOrder", "emit"]

BLOCK = 4096
"""The number of random slots drawn at a time."""

_DRAIN = 1
_PICKS = 2


class ShuffleOrder:
    """The random choices of one epoch of a shuffle buffer; each can be computed directly.

    Args:
        key: Integers that seed it.
        buffer_size: The number of slots.
    """

    def __init__(self, key: list[int], buffer_size: int) -> None:
        self._key = [number % 2**64 for number in key]
        self._buffer_size = buffer_size

    def picks(self, block: int) -> Indices:
        """Returns the slots of the emissions from ``block * BLOCK`` on."""
        return self._generator(_PICKS, block).integers(self._buffer_size, size=BLOCK)

    def drain(self, count: int) -> Indices:
        """Returns the order in which the last ``count`` elements leave the buffer."""
        return self._generator(_DRAIN).permutation(count)

    def slots_after(self, emissions: int) -> Indices:
        """Returns the index of the element in each slot after ``emissions`` emissions."""
        slots = np.arange(self._buffer_size)
        for block in range(-(-emissions // BLOCK)):
            picks = self.picks(block)[: emissions - block * BLOCK]
            first = self._buffer_size + block * BLOCK
            slots[picks] = np.arange(first, first + len(picks))
        return slots

    def _generator(self, *purpose: int) -> np.random.Generator:
        return np.random.default_rng([*self._key, *purpose])


def emit(slots: ArrayLike, picks: Indices, incoming: Indices) -> Indices:
    """Returns the picked values in order, and replaces each by the next incoming value.

    A pick returns the value that the previous pick of the same slot put there, or the initial value. A
    stable sort by slot brings these picks next to each other, so no loop is needed.
    """
    order = np.argsort(picks, kind="stable")
    again = picks[order[1:]] == picks[order[:-1]]
    given: Indices = slots[picks]
    given[order[1:][again]] = incoming[order[:-1][again]]
    slots[picks] = incoming
    return given
