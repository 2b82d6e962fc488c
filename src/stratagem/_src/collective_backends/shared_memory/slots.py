"""``Slot``: one array of a collective, and its offset in every shared-memory segment."""

from __future__ import annotations

import functools
import itertools
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from stratagem._src.collective_backends.shared_memory.collective_op import CollectiveOp
from stratagem._src.collective_backends.shared_memory.segment import OwnSegment, PeerSegment

__all__ = ["DeviceBuffers", "Slot", "allocate", "fingerprint", "split_evenly"]

_ALIGNMENT = 64


class DeviceBuffers(NamedTuple):
    """The flat operands and results of one device in a collective.

    Attributes:
        arrays: The operands.
        results: The arrays to fill, of the size that ``CollectiveOp.size`` returns.
    """

    arrays: Sequence[np.ndarray[Any, Any]]
    results: Sequence[np.ndarray[Any, Any]]


class Slot(NamedTuple):
    """One array of a collective: the operand and the result of each device, and the place in segments.

    The offset is the same in the segments of all processes, because all run the same collective.
    """

    arrays: list[np.ndarray[Any, Any]]
    results: list[np.ndarray[Any, Any]]
    offset: int
    num_bytes: int

    def view_in(self, segment: OwnSegment | PeerSegment) -> np.ndarray[Any, Any]:
        """Returns the array in a segment."""
        return segment.view(self.offset, self.num_bytes).view(self.arrays[0].dtype)

    def copy_to_all_devices(self) -> None:
        """Copies the result of the first device to the others."""
        first, *others = self.results
        for other in others:
            other[:] = first


def allocate(buffers: Sequence[DeviceBuffers], copies: int) -> tuple[list[Slot], int]:
    """Returns a slot for each array, and the number of bytes that they take in a segment.

    Args:
        buffers: The buffers of each device of this process.
        copies: How many arrays of one device fit into a slot.
    """
    slots, total = [], 0
    # From one list of arrays for each device to one list of devices for each array.
    for arrays, results in zip(
        zip(*(of_device.arrays for of_device in buffers), strict=True),
        zip(*(of_device.results for of_device in buffers), strict=True),
        strict=True,
    ):
        num_bytes = copies * arrays[0].nbytes
        slots.append(Slot(list(arrays), list(results), total, num_bytes))
        # Each array begins on a cache line of its own: two processes that write neighbouring arrays would
        # otherwise take the line from each other with every write.
        total += -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
    return slots, total


def split_evenly(size: int, count: int) -> list[slice]:
    """Returns ``count`` slices of nearly the same size, in order.

    >>> from stratagem._src.collective_backends.shared_memory.slots import split_evenly
    >>> split_evenly(5, 2)
    [slice(0, 2, None), slice(2, 5, None)]
    """
    # Sizes differ by one at most, and every process computes the same slices without asking.
    ends = [size * i // count for i in range(count + 1)]
    return [slice(a, b) for a, b in itertools.pairwise(ends)]


def fingerprint(op: CollectiveOp, buffers: Sequence[DeviceBuffers]) -> int | None:
    """Returns a number that is equal in processes that run the same collective.

    ``None`` if the devices of this process do not agree on the dtypes and sizes.
    """
    described = tuple((array.dtype.str, array.size) for array in buffers[0].arrays)
    for of_device in buffers[1:]:
        if tuple((array.dtype.str, array.size) for array in of_device.arrays) != described:
            return None
    return _checksum(op, len(buffers), described)


@functools.lru_cache(maxsize=1024)
def _checksum(op: CollectiveOp, num_devices: int, described: tuple[tuple[str, int], ...]) -> int:
    return zlib.crc32(repr((int(op), num_devices, described)).encode())
