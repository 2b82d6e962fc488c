"""Packing (gradient bucketing): which arrays are concatenated into one collective."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.core.communication_options import CommunicationOptions
from stratagem._src.core.types import Equation, PyTree
from stratagem._src.jaxpr.replication_analysis import name_of_call
from stratagem._src.mesh.replica_group import ReplicaGroup

__all__ = [
    "DEFAULT_PACKING",
    "Packing",
    "apply_in_packs",
    "default_pack_bytes",
    "in_packs",
    "packed",
    "packing_of_call",
    "plan_packs",
    "unpacked",
]

_BYTES_ON_CPU = 4 * 2**20
"""Measured by ``benchmarks/packing.py``, among 16 kB to 64 MB: the fastest or close to it for 6 kB to 32 MB
in total, on two and four devices of one process and between two connected processes."""

_BYTES_IN_MEMORY = 256 * 2**10
"""The same between processes that share memory, with one or two devices each: one collective takes several
packs there, so larger packs save little and cost copies."""

_MAX_ARRAYS_PER_PACK = 64
"""XLA's CPU compiler takes 0.1 ms for each pair of arrays in a pack: 0.4 s for 64, 8 s for 300."""


def default_pack_bytes(group: ReplicaGroup, *, shares_memory: bool = False) -> int:
    """Returns the default size of packs in bytes; 0 for no packing.

    On accelerators XLA combines collectives itself, without the copies of a pack, so arrays are not packed.

    Args:
        group: The replicas.
        shares_memory: Whether the packs go through shared memory.
    """
    if shares_memory:
        return _BYTES_IN_MEMORY
    return _BYTES_ON_CPU if group.on_cpu else 0


def plan_packs(
    arrays: Sequence[Any], *, num_packs: int = 0, bytes_per_pack: int = 0, arrays_per_pack: int = 0
) -> list[list[int]]:
    """Returns packs: lists of positions in ``arrays``. The arrays of a pack have one dtype.

    Args:
        arrays: Anything with ``size`` and ``dtype``.
        num_packs: The number of packs for each dtype, of about equal size; 0 sends every array alone.
        bytes_per_pack: If positive, a pack is closed once it has this many bytes, and ``num_packs`` is
            ignored; an array of that size or more is sent alone.
        arrays_per_pack: If positive, a pack is closed once it has this many arrays.

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
        # Rounded up, so that `num_packs` packs hold everything. At least 1: with a limit of 0, empty arrays
        # would each get a pack.
        limit = bytes_per_pack or -(-total // num_packs) or 1
        # An array as large as a pack gains nothing from company, and packing it would copy it.
        alone = [p for p in positions if 0 < bytes_per_pack <= arrays[p].size * dtype.itemsize]
        packs.extend([position] for position in alone)
        size = 0
        packs.append([])
        for position in positions:
            if position in alone:
                continue
            if size >= limit or len(packs[-1]) == arrays_per_pack > 0:
                packs.append([])
                size = 0
            packs[-1].append(position)
            size += arrays[position].size * dtype.itemsize
    # In the order of their first arrays, which is the same in all processes: packs are sent one after the
    # other, and processes that send different ones wait for each other for ever.
    return sorted(pack for pack in packs if pack)


@dataclass(frozen=True)
class Packing:
    """How the arrays of a collective are packed.

    Args:
        num_packs: As for ``plan_packs``; ``None`` for packs of the default size.
        bytes_per_pack: As for ``plan_packs``; 0 to use ``num_packs``.
    """

    num_packs: int | None = None
    bytes_per_pack: int = 0

    def __post_init__(self) -> None:
        if self.num_packs is not None and self.num_packs < 0:
            raise ValueError(f"num_packs must be >= 0, got {self.num_packs}.")

    def with_options(self, options: CommunicationOptions) -> Packing:
        """Returns this packing, overridden by the options of a call."""
        return Packing(self.num_packs, options.bytes_per_pack or self.bytes_per_pack)

    def plan(
        self, arrays: Sequence[Any], group: ReplicaGroup, *, shares_memory: bool = False
    ) -> list[list[int]]:
        """Returns packs of positions in ``arrays``; see ``default_pack_bytes``."""
        if self.bytes_per_pack or self.num_packs is not None:
            return plan_packs(
                arrays, num_packs=self.num_packs or 0, bytes_per_pack=self.bytes_per_pack
            )
        return plan_packs(
            arrays,
            bytes_per_pack=default_pack_bytes(group, shares_memory=shares_memory),
            arrays_per_pack=_MAX_ARRAYS_PER_PACK,
        )


DEFAULT_PACKING = Packing()

_NAME = re.compile(r"in_packs_(None|\d+)_(\d+)")


def in_packs(packing: Packing, fn: Callable[..., Any], *args: PyTree) -> Any:
    """Returns ``fn(*args)``, and records in the jaxpr how to pack the collectives in it.

    The record is the name of a ``jax.jit`` call around ``fn``, which ``packing_of_call`` reads.

    Args:
        packing: The packing.
        fn: The function. Pass the same object each time: a jitted function is cached for each.
        *args: Its arguments.
    """
    return fn(*args) if packing == DEFAULT_PACKING else _annotated(packing, fn)(*args)


@functools.cache
def _annotated(packing: Packing, fn: Callable[..., Any]) -> Any:
    def annotated(*args: PyTree) -> Any:
        return fn(*args)

    annotated.__name__ = f"in_packs_{packing.num_packs}_{packing.bytes_per_pack}"
    return jax.jit(annotated)


def packing_of_call(eqn: Equation) -> Packing | None:
    """Returns the packing that ``in_packs`` recorded for a call, if any."""
    match = _NAME.fullmatch(name_of_call(eqn) or "")
    if match is None:
        return None
    num_packs, bytes_per_pack = match.groups()
    return Packing(None if num_packs == "None" else int(num_packs), int(bytes_per_pack))


def apply_in_packs(
    fn: Callable[[Any], Any], arrays: Sequence[Any], packs: Sequence[Sequence[int]]
) -> list[Any]:
    """Returns ``fn`` of each array. ``fn`` is called once for each pack, with a flat array.

    ``fn`` must work element by element, and may add leading dimensions to its argument.
    """
    return unpacked([fn(flat) for flat in packed(arrays, packs)], arrays, packs)


def packed(arrays: Sequence[Any], packs: Sequence[Sequence[int]]) -> list[Any]:
    """Returns a flat array for each pack; the array of a pack of one is unchanged."""
    return [
        arrays[pack[0]]
        if len(pack) == 1
        else jnp.concatenate([arrays[position].ravel() for position in pack])
        for pack in packs
    ]


def unpacked(
    flats: Sequence[Any], arrays: Sequence[Any], packs: Sequence[Sequence[int]]
) -> list[Any]:
    """Returns the result for each array, given the result for each pack.

    The results of packs may have additional leading dimensions.
    """
    results: list[Any] = [None] * len(arrays)
    for flat, pack in zip(flats, packs, strict=True):
        if len(pack) == 1:
            results[pack[0]] = flat
            continue
        start = 0
        for position in pack:
            stop = start + arrays[position].size
            # A gathered pack is (replicas, sum of sizes), a reduced one only (sum of sizes).
            part = flat[..., start:stop]
            results[position] = part.reshape(*flat.shape[:-1], *arrays[position].shape)
            start = stop
    return results
