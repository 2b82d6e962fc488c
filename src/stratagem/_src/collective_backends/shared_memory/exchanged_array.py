"""``ExchangedArray``: one of the arrays of an exchange, and where it lies in every area."""

from __future__ import annotations

import functools
import itertools
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from stratagem._src.collective_backends.shared_memory.area import OwnArea, PeerArea
from stratagem._src.collective_backends.shared_memory.combination import Combination

__all__ = ["ExchangedArray", "Share", "cut", "fingerprint", "lay_out"]

_ALIGNMENT = 64


class Share(NamedTuple):
    """What a device brings, and what it gets: flat arrays.

    Attributes:
        arrays: What it brings.
        results: As large as ``Combination.size`` says.
    """

    arrays: Sequence[np.ndarray[Any, Any]]
    results: Sequence[np.ndarray[Any, Any]]


class ExchangedArray(NamedTuple):
    """An array that is exchanged: what each device brings and gets, and where it lies in every area."""

    arrays: list[np.ndarray[Any, Any]]
    results: list[np.ndarray[Any, Any]]
    offset: int
    num_bytes: int

    def seen_in(self, area: OwnArea | PeerArea) -> np.ndarray[Any, Any]:
        """Returns the array of an area."""
        return area.view(self.offset, self.num_bytes).view(self.arrays[0].dtype)

    def give_to_all(self) -> None:
        """Gives what the first device has got to the others."""
        first, *others = self.results
        for other in others:
            other[:] = first


def lay_out(shares: Sequence[Share], copies: int) -> tuple[list[ExchangedArray], int]:
    """Returns the arrays with their places in an area, and how many bytes of it they take.

    Args:
        shares: Of each device of this process.
        copies: How many times as large as one device's array its place is.
    """
    laid_out, total = [], 0
    for arrays, results in zip(
        zip(*(share.arrays for share in shares), strict=True),
        zip(*(share.results for share in shares), strict=True),
        strict=True,
    ):
        num_bytes = copies * arrays[0].nbytes
        laid_out.append(ExchangedArray(list(arrays), list(results), total, num_bytes))
        total += -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
    return laid_out, total


def cut(size: int, count: int) -> list[slice]:
    """Returns ``count`` slices of nearly the same size, in order.

    >>> from stratagem._src.collective_backends.shared_memory.exchanged_array import cut
    >>> cut(5, 2)
    [slice(0, 2, None), slice(2, 5, None)]
    """
    ends = [size * i // count for i in range(count + 1)]
    return [slice(a, b) for a, b in itertools.pairwise(ends)]


def fingerprint(combination: Combination, shares: Sequence[Share]) -> int | None:
    """Returns what is equal in processes that exchange the same; ``None`` if the devices do not."""
    described = tuple((array.dtype.str, array.size) for array in shares[0].arrays)
    for share in shares[1:]:
        if tuple((array.dtype.str, array.size) for array in share.arrays) != described:
            return None
    return _checksum(combination, len(shares), described)


@functools.lru_cache(maxsize=1024)
def _checksum(
    combination: Combination, num_devices: int, described: tuple[tuple[str, int], ...]
) -> int:
    return zlib.crc32(repr((int(combination), num_devices, described)).encode())
