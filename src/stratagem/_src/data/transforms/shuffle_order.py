"""The order that a shuffle buffer gives: pure arithmetic on positions.

The buffer has ``buffer_size`` slots, filled with the first elements. Emission ``t`` takes the
element in a random slot and puts element ``buffer_size + t`` there. When the input ends, what is
left comes out in a random permutation. So with a buffer as large as the input the order is one
permutation.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stratagem._src.data.plan.random_access import Indices

__all__ = ["BLOCK", "ShuffleOrder", "emit"]

BLOCK = 4096
"""Number of slots that are drawn at a time."""

_DRAIN = 1
_PICKS = 2


class ShuffleOrder:
    """The random choices of one epoch of a shuffle buffer; any of them can be had at once.

    Args:
        key: Numbers that seed it.
        buffer_size: Number of slots.
    """

    def __init__(self, key: list[int], buffer_size: int) -> None:
        self._key = [number % 2**64 for number in key]
        self._buffer_size = buffer_size

    def picks(self, block: int) -> Indices:
        """Returns the slots of the emissions from ``block * BLOCK`` on."""
        return self._generator(_PICKS, block).integers(self._buffer_size, size=BLOCK)

    def drain(self, count: int) -> Indices:
        """Returns the order in which the last ``count`` slots are emptied."""
        return self._generator(_DRAIN).permutation(count)

    def slots_after(self, emissions: int) -> Indices:
        """Returns the number of the element in each slot after so many emissions."""
        slots = np.arange(self._buffer_size)
        for block in range(-(-emissions // BLOCK)):
            picks = self.picks(block)[: emissions - block * BLOCK]
            first = self._buffer_size + block * BLOCK
            slots[picks] = np.arange(first, first + len(picks))
        return slots

    def _generator(self, *purpose: int) -> np.random.Generator:
        return np.random.default_rng([*self._key, *purpose])


def emit(slots: Any, picks: Indices, incoming: Indices) -> Indices:
    """Returns what the slots give, one pick at a time, and puts the incoming values in their place.

    What a pick gives is what the last pick of the same slot put there, so no loop is needed.
    """
    order = np.argsort(picks, kind="stable")
    again = picks[order[1:]] == picks[order[:-1]]
    given: Indices = slots[picks]
    given[order[1:][again]] = incoming[order[:-1][again]]
    slots[picks] = incoming
    return given
