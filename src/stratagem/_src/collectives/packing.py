"""Which arrays travel together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from stratagem._src.core.communication_options import CommunicationOptions

__all__ = ["PACK_BYTES", "Packing", "apply_in_packs", "plan_packs"]

PACK_BYTES = 256 * 1024
"""Where joining stops to pay: one pack of 1 MB took 2.7 times as long as four of 256 kB (CPU)."""


def plan_packs(
    arrays: Sequence[Any], *, num_packs: int = 0, bytes_per_pack: int = 0
) -> list[list[int]]:
    """Returns groups of positions in ``arrays``; the arrays of a group have one dtype.

    Args:
        arrays: Anything with ``size`` and ``dtype``.
        num_packs: Packs for each dtype, about equally large; 0 keeps every array alone.
        bytes_per_pack: If positive, a pack is closed once it has this many bytes, whatever
            ``num_packs`` says.

    >>> import numpy as np
    >>> plan_packs([np.zeros(3), np.zeros(1), np.zeros(4)], num_packs=2)
    [[0, 1], [2]]
    """
    if num_packs < 0:
        raise ValueError(f"num_packs must be >= 0, got {num_packs}.")
    if not bytes_per_pack and not num_packs:
        return [[position] for position in range(len(arrays))]
    by_dtype: dict[Any, list[int]] = {}
    for position, array in enumerate(arrays):
        by_dtype.setdefault(np.dtype(array.dtype), []).append(position)
    packs: list[list[int]] = []
    for dtype, positions in by_dtype.items():
        total = sum(arrays[position].size for position in positions) * dtype.itemsize
        limit = bytes_per_pack or -(-total // num_packs) or 1
        size = 0
        packs.append([])
        for position in positions:
            if size >= limit:
                packs.append([])
                size = 0
            packs[-1].append(position)
            size += arrays[position].size * dtype.itemsize
    return packs


@dataclass(frozen=True)
class Packing:
    """How cross-device ops pack, unless options say otherwise.

    Args:
        num_packs: As for ``plan_packs``; ``None`` makes packs of about ``PACK_BYTES``.
    """

    num_packs: int | None = None

    def __post_init__(self) -> None:
        if self.num_packs is not None and self.num_packs < 0:
            raise ValueError(f"num_packs must be >= 0, got {self.num_packs}.")

    def plan(self, arrays: Sequence[Any], options: CommunicationOptions) -> list[list[int]]:
        """Returns groups of positions in ``arrays`` that travel together."""
        if options.bytes_per_pack or self.num_packs is None:
            return plan_packs(arrays, bytes_per_pack=options.bytes_per_pack or PACK_BYTES)
        return plan_packs(arrays, num_packs=self.num_packs)


def apply_in_packs(
    fn: Callable[[Any], Any], arrays: Sequence[Any], packs: Sequence[Sequence[int]]
) -> list[Any]:
    """Returns ``fn`` of each array, where ``fn`` is called once for each pack, on a flat array.

    ``fn`` must work element by element and keep the shape.
    """
    results: list[Any] = [None] * len(arrays)
    for pack in packs:
        if len(pack) == 1:
            results[pack[0]] = fn(arrays[pack[0]])
            continue
        flat = fn(jnp.concatenate([arrays[position].ravel() for position in pack]))
        start = 0
        for position in pack:
            stop = start + arrays[position].size
            results[position] = flat[start:stop].reshape(arrays[position].shape)
            start = stop
    return results
