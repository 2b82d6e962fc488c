"""``SharedMemoryBackend``: collectives between processes that read each other's memory.

Every process reduces small arrays in full, which saves a synchronization. Large arrays are reduced by a
reduce-scatter and an all-gather: each process reduces one shard. All processes add in the order of the
ranks, so all have the same bits. A process with several devices combines their arrays first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from stratagem._src.collective_backends.shared_memory.collective_op import CollectiveOp, combine
from stratagem._src.collective_backends.shared_memory.local_group import (
    DIFFERENT,
    LocalGroup,
    Phase,
)
from stratagem._src.collective_backends.shared_memory.segment import OwnSegment, PeerSegment
from stratagem._src.collective_backends.shared_memory.slots import (
    DeviceBuffers,
    Slot,
    allocate,
    fingerprint,
    split_evenly,
)

__all__ = ["SMALL_BYTES", "CollectiveBackend", "SharedMemoryBackend"]

SMALL_BYTES = 64 * 1024
"""Up to this size the synchronization for shards costs more than reducing the full array."""


class CollectiveBackend(Protocol):
    """This process among those that run collectives. All run the same collectives in the same order."""

    @property
    def num_processes(self) -> int:
        """The number of processes."""

    @property
    def is_aborted(self) -> bool:
        """Whether all further collectives fail."""

    def run(self, op: CollectiveOp, buffers: Sequence[DeviceBuffers]) -> str | None:
        """Runs one collective and fills the results; one thread at a time.

        Args:
            op: The collective.
            buffers: The operands and results of each device of this process; every process has the same
                number of devices.

        Returns:
            The error, if any.
        """

    def abort(self) -> None:
        """Ends all waits for other processes, now and later; from any thread."""

    def close(self) -> None:
        """Releases all resources of the backend."""


class SharedMemoryBackend:
    """A ``CollectiveBackend`` between processes of one host.

    Args:
        rank: The rank of this process.
        segments: The segments of all processes in the order of their ranks; at ``rank`` the own one.
    """

    def __init__(self, rank: int, segments: Sequence[OwnSegment | PeerSegment]) -> None:
        self._group = LocalGroup(rank, segments)

    @property
    def num_processes(self) -> int:
        """The number of processes."""
        return self._group.size

    @property
    def is_aborted(self) -> bool:
        """Whether all further collectives fail."""
        return self._group.is_aborted

    def abort(self) -> None:
        """Ends all waits for other processes, now and later; from any thread."""
        self._group.abort()

    def close(self) -> None:
        """Closes all segments."""
        self._group.close()

    def run(self, op: CollectiveOp, buffers: Sequence[DeviceBuffers]) -> str | None:
        """Runs one collective and fills the results; see ``CollectiveBackend``."""
        tag = fingerprint(op, buffers)
        if tag is None:
            self.abort()
            return DIFFERENT
        copies = len(buffers) if op is CollectiveOp.GATHER else 1
        slots, total = allocate(buffers, copies)
        if (problem := self._group.begin(total, tag)) is not None:
            return problem
        if op is CollectiveOp.SCATTER:
            problem = self._reduce_scatter(op, slots)
        elif op is CollectiveOp.GATHER or total <= SMALL_BYTES:
            problem = self._combine_full(op, slots)
        else:
            problem = self._reduce_in_shards(op, slots)
        if problem is None:
            self._group.end()
            if op is not CollectiveOp.SCATTER:
                for slot in slots:
                    slot.copy_to_all_devices()
        return problem

    def _combine_full(self, op: CollectiveOp, slots: Sequence[Slot]) -> str | None:
        """All-gathers, or reduces small arrays: every process reads all operands."""
        for slot in slots:
            combine(op, slot.arrays, slot.view_in(self._group.own))
        if (problem := self._group.publish()) is not None:
            return problem
        for slot in slots:
            operands = [slot.view_in(segment) for segment in self._group.segments]
            combine(op, operands, slot.results[0])
        return None

    def _reduce_in_shards(self, op: CollectiveOp, slots: Sequence[Slot]) -> str | None:
        """All-reduces large arrays: each process reduces its shard and reads those of the others."""
        sharded = [(slot, self._shards(slot)) for slot in slots]
        if (problem := self._publish_shards(op, sharded)) is not None:
            return problem
        for slot, shards in sharded:
            shard, result = shards[self._group.rank], slot.results[0]
            combine(op, self._operands(slot, shard), result[shard])
            # The rest of the own segment still holds operands, which slower peers may be reading. This
            # shard of it no other process reads before `REDUCED`.
            slot.view_in(self._group.own)[shard] = result[shard]
        self._group.advance(Phase.REDUCED)
        if (problem := self._group.wait_for(Phase.REDUCED)) is not None:
            return problem
        for slot, shards in sharded:
            for rank, shard in enumerate(shards):
                if rank != self._group.rank:
                    slot.results[0][shard] = slot.view_in(self._group.segments[rank])[shard]
        return None

    def _reduce_scatter(self, op: CollectiveOp, slots: Sequence[Slot]) -> str | None:
        sharded = [(slot, self._shards(slot)) for slot in slots]
        if (problem := self._publish_shards(op, sharded)) is not None:
            return problem
        for slot, shards in sharded:
            start = shards[self._group.rank].start
            for result in slot.results:
                shard = slice(start, start + result.size)
                combine(op, self._operands(slot, shard), result)
                start = shard.stop
        return None

    def _publish_shards(
        self, op: CollectiveOp, sharded: Sequence[tuple[Slot, list[slice]]]
    ) -> str | None:
        for slot, shards in sharded:
            mine = slot.view_in(self._group.own)
            for rank, shard in enumerate(shards):
                # No other process reads the own shard, so that of a single device is not copied.
                if rank != self._group.rank or len(slot.arrays) > 1:
                    combine(op, [array[shard] for array in slot.arrays], mine[shard])
        return self._group.publish()

    def _operands(self, slot: Slot, shard: slice) -> list[np.ndarray[Any, Any]]:
        """Returns the operand of each process for a shard that this process reduces."""
        operands = [slot.view_in(segment)[shard] for segment in self._group.segments]
        if len(slot.arrays) == 1:
            operands[self._group.rank] = slot.arrays[0][shard]
        return operands

    def _shards(self, slot: Slot) -> list[slice]:
        return split_evenly(slot.arrays[0].size, self._group.size)
