"""``MultiHostBackend``: hierarchical collectives between processes on several hosts.

The processes of a host first combine their operands in shared memory. Then each lane carries its share of
the data between hosts, and writes the result to its segment, where the other processes of its host read it.
Every result is computed once and copied, so all workers have the same bits.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from stratagem._src.collective_backends.hosts.host_layout import HostLayout
from stratagem._src.collective_backends.hosts.host_link import HostLink
from stratagem._src.collective_backends.hosts.reduce_scatter_all_gather import Chunk
from stratagem._src.collective_backends.shared_memory.collective_op import CollectiveOp, combine
from stratagem._src.collective_backends.shared_memory.local_group import (
    ABORTED,
    DIFFERENT,
    LocalGroup,
    Phase,
)
from stratagem._src.collective_backends.shared_memory.segment import OwnSegment, PeerSegment
from stratagem._src.collective_backends.shared_memory.shared_memory_backend import SMALL_BYTES
from stratagem._src.collective_backends.shared_memory.slots import (
    DeviceBuffers,
    Slot,
    allocate,
    fingerprint,
    split_evenly,
)

__all__ = ["MultiHostBackend"]


class MultiHostBackend:
    """A ``CollectiveBackend`` between processes on several hosts.

    Args:
        rank: The rank of this process in the job.
        layout: Which processes are on which host.
        segments: The segments of all processes of this host, in the order of their ranks.
        link: The connections of this process to other hosts; ``None`` if it is not in a lane.
    """

    def __init__(
        self,
        rank: int,
        layout: HostLayout,
        segments: Sequence[OwnSegment | PeerSegment],
        link: HostLink | None,
    ) -> None:
        self._rank = rank
        self._layout = layout
        self._host = layout.host_of(rank)
        self._group = LocalGroup(layout.local_rank(rank), segments)
        self._link = link
        self._scratch = np.empty(0, np.uint8)

    @property
    def num_processes(self) -> int:
        """The number of processes."""
        return self._layout.num_processes

    @property
    def is_aborted(self) -> bool:
        """Whether all further collectives fail."""
        return self._group.is_aborted

    def unacknowledged_seconds(self) -> dict[int, float]:
        """Returns for how long processes, by rank, have not acknowledged sent data; from any thread."""
        if self._link is None:
            return {}
        peers = self._layout.lane_peers(self._rank)
        return {peers[host]: s for host, s in self._link.unacknowledged_seconds().items()}

    def abort(self) -> None:
        """Ends all waits for other processes, now and later; from any thread."""
        self._group.abort()
        if self._link is not None:
            self._link.interrupt()

    def close(self) -> None:
        """Closes the connections and all segments."""
        self._group.close()
        if self._link is not None:
            self._link.close()

    def run(self, op: CollectiveOp, buffers: Sequence[DeviceBuffers]) -> str | None:
        """Runs one collective and fills the results; see ``CollectiveBackend``."""
        tag = fingerprint(op, buffers)
        if tag is None:
            self.abort()
            return DIFFERENT
        copies = self.num_processes * len(buffers) if op is CollectiveOp.GATHER else 1
        slots, total = allocate(buffers, copies)
        problem = self._group.begin(total, tag)
        if problem is None:
            if op is CollectiveOp.GATHER:
                problem = self._gather(slots, tag)
            elif op is CollectiveOp.SCATTER:
                problem = self._scatter(slots, tag)
            else:
                problem = self._reduce(op, slots, tag, is_small=total <= SMALL_BYTES)
        if problem is not None:
            was_aborted = self.is_aborted
            self.abort()
            return ABORTED if was_aborted else problem
        self._group.end()
        if op is not CollectiveOp.SCATTER:
            for slot in slots:
                slot.copy_to_all_devices()
        return None

    # --- SUM, MIN, MAX ----------------------------------------------------------------------------------

    def _reduce(
        self,
        op: CollectiveOp,
        slots: Sequence[Slot],
        tag: int,
        *,
        is_small: bool,
    ) -> str | None:
        if self._group.size == 1:
            return self._reduce_alone(op, slots, tag)
        # Hosts with processes (0, 1) and (2, 3) have two lanes, 0-2 and 1-3. Of 100 elements lane 0
        # carries [0:50] between the hosts, and lane 1 carries [50:100]: process 0 adds what 0 and 1
        # brought for [0:50], swaps the sum with process 2, and process 1 reads the total in the segment of
        # process 0.
        divided = [(slot, self._lanes(slot.arrays[0].size, is_small)) for slot in slots]
        for slot, parts in divided:
            mine = slot.view_in(self._group.own)
            for local, part in enumerate(parts):
                # No other process reads the part that this lane carries, so that of a single device is not
                # copied.
                if local != self._group.rank or len(slot.arrays) > 1:
                    combine(op, [array[part] for array in slot.arrays], mine[part])
        if (problem := self._group.publish()) is not None:
            return problem
        if self._link is not None:
            problem = self._reduce_lane(op, divided, tag, self._link)
            if problem is not None:
                return problem
        if (problem := self._lanes_are_done()) is not None:
            return problem
        for slot, parts in divided:
            for local, part in enumerate(parts):
                if local != self._group.rank:
                    slot.results[0][part] = slot.view_in(self._group.segments[local])[part]
        return None

    def _reduce_alone(self, op: CollectiveOp, slots: Sequence[Slot], tag: int) -> str | None:
        """Reduces on a host with one process, without shared memory."""
        operands = []
        for slot in slots:
            operand = slot.arrays[0]
            if len(slot.arrays) > 1:
                operand = slot.view_in(self._group.own)
                combine(op, slot.arrays, operand)
            operands.append(operand)
        assert self._link is not None
        results = [slot.results[0] for slot in slots]
        return self._link.all_reduce(op, operands, results, tag)

    def _reduce_lane(
        self,
        op: CollectiveOp,
        divided: Sequence[tuple[Slot, list[slice]]],
        tag: int,
        link: HostLink,
    ) -> str | None:
        mine = [parts[self._group.rank] for _, parts in divided]
        operands = self._scratch_for(
            [
                (part.stop - part.start, p.arrays[0].dtype)
                for part, (p, _) in zip(mine, divided, strict=True)
            ]
        )
        results = [slot.results[0][part] for part, (slot, _) in zip(mine, divided, strict=True)]
        segments = [
            slot.view_in(self._group.own)[part]
            for part, (slot, _) in zip(mine, divided, strict=True)
        ]
        brought = [
            [slot.view_in(segment)[part] for segment in self._group.segments]
            for part, (slot, _) in zip(mine, divided, strict=True)
        ]
        for of_place, part, (slot, _) in zip(brought, mine, divided, strict=True):
            if len(slot.arrays) == 1:
                of_place[self._group.rank] = slot.arrays[0][part]
        prepared: set[tuple[int, int]] = set()
        preparing = threading.Lock()

        def prepare(chunk: Chunk) -> None:
            """Combines the operands of this host's processes, while other chunks are in flight."""
            # The sending thread asks before it sends the chunk, and the receiving thread before it adds
            # what arrived: the first of them combines, the other one waits for that.
            with preparing:
                if (key := (chunk.array, chunk.part.start)) not in prepared:
                    addends = [array[chunk.part] for array in brought[chunk.array]]
                    combine(op, addends, chunk.of(operands))
                    prepared.add(key)

        def publish(chunk: Chunk) -> None:
            # Overwrites addends, which only this process reads, and has read.
            chunk.of(segments)[:] = chunk.of(results)

        return link.all_reduce(op, operands, results, tag, prepare, publish)

    def _scratch_for(self, wanted: Sequence[tuple[int, Any]]) -> list[np.ndarray[Any, Any]]:
        """Returns arrays of sizes and dtypes in memory that is reused: new memory costs page faults."""
        starts, total = [], 0
        for size, dtype in wanted:
            starts.append(total)
            total += -(-size * dtype.itemsize // 64) * 64
        if len(self._scratch) < total:
            self._scratch = np.empty(total, np.uint8)
        return [
            self._scratch[start : start + size * dtype.itemsize].view(dtype)
            for start, (size, dtype) in zip(starts, wanted, strict=True)
        ]

    def _lanes(self, size: int, is_small: bool) -> list[slice]:
        """Returns the slice of an array that each process of this host carries between hosts."""
        # Processes outside of any lane carry an empty slice.
        # A small array goes through one lane: several messages take longer than one that is a little
        # larger.
        num_lanes = 1 if is_small else self._layout.num_lanes
        parts = split_evenly(size, num_lanes)
        return parts + [slice(size, size)] * (self._group.size - num_lanes)

    # --- GATHER -----------------------------------------------------------------------------------------

    def _gather(self, slots: Sequence[Slot], tag: int) -> str | None:
        """All-gathers: every lane receives blocks of other hosts into its segment, where all read them."""
        for slot in slots:
            combine(
                CollectiveOp.GATHER, slot.arrays, self._block(slot, self._group.own, self._rank)
            )
        if (problem := self._group.publish()) is not None:
            return problem
        if self._link is not None:
            # A process outside of any lane has its data carried by another: with hosts (0, 2, 4) and (1,
            # 3), lane 0 sends the blocks of processes 0 and 4.
            lane, own = self._group.rank, self._group.own
            sent = [
                self._block(slot, self._group.segments[self._layout.local_rank(rank)], rank)
                for rank in self._layout.ranks_of_lane(self._host, lane)
                for slot in slots
            ]
            received = {
                host: [
                    self._block(slot, own, rank)
                    for rank in self._layout.ranks_of_lane(host, lane)
                    for slot in slots
                ]
                for host in self._layout.lane_peers(self._rank)
            }
            if (
                problem := self._link.swap(dict.fromkeys(received, sent), received, tag)
            ) is not None:
                return problem
        if (problem := self._lanes_are_done()) is not None:
            return problem
        for host, ranks in enumerate(self._layout.hosts):
            for local, rank in enumerate(ranks):
                # Blocks of this host are in the segments of their processes, others in that of their lane.
                holder = local if host == self._host else local % self._layout.num_lanes
                for slot in slots:
                    block = self._block(slot, self._group.segments[holder], rank)
                    slot.results[0][rank * block.size : (rank + 1) * block.size] = block
        return None

    def _block(
        self, slot: Slot, segment: OwnSegment | PeerSegment, rank: int
    ) -> np.ndarray[Any, Any]:
        """Returns the operands of a process to be gathered, in a segment."""
        size = len(slot.arrays) * slot.arrays[0].size
        return slot.view_in(segment)[rank * size : (rank + 1) * size]

    # --- SCATTER ----------------------------------------------------------------------------------------

    def _scatter(self, slots: Sequence[Slot], tag: int) -> str | None:
        """Reduce-scatters: a lane sums the shards of the processes that it serves on its host."""
        for slot in slots:
            combine(CollectiveOp.SUM, slot.arrays, slot.view_in(self._group.own))
        if (problem := self._group.publish()) is not None:
            return problem
        if self._link is not None and (problem := self._scatter_lane(slots, tag, self._link)):
            return problem
        if (problem := self._lanes_are_done()) is not None:
            return problem
        # The lane that serves this process; with hosts (0, 2, 4) and (1, 3) process 4 reads in the segment
        # of 0.
        holder = self._group.segments[self._group.rank % self._layout.num_lanes]
        for slot in slots:
            scattered = slot.view_in(holder)[self._slice(slot, self._rank)]
            for result, part in zip(
                slot.results, split_evenly(scattered.size, len(slot.results)), strict=True
            ):
                result[:] = scattered[part]
        return None

    def _scatter_lane(self, slots: Sequence[Slot], tag: int, link: HostLink) -> str | None:
        def served(host: int) -> list[tuple[Slot, int]]:
            ranks = self._layout.ranks_of_lane(host, self._group.rank)
            return [(slot, rank) for rank in ranks for slot in slots]

        own = [self._local_sum(slot, rank) for slot, rank in served(self._host)]
        outgoing = {
            host: [self._local_sum(slot, rank) for slot, rank in served(host)]
            for host in self._layout.lane_peers(self._rank)
        }
        brought = {host: [np.empty_like(array) for array in own] for host in outgoing}
        if (problem := link.swap(outgoing, brought, tag)) is not None:
            return problem
        # Overwrites addends of these slices, which only this lane reads, and has read.
        results = [
            slot.view_in(self._group.own)[self._slice(slot, rank)]
            for slot, rank in served(self._host)
        ]
        link.combine(CollectiveOp.SUM, own, brought, results)
        return None

    def _local_sum(self, slot: Slot, rank: int) -> np.ndarray[Any, Any]:
        part = self._slice(slot, rank)
        total = np.empty(part.stop - part.start, slot.arrays[0].dtype)
        combine(
            CollectiveOp.SUM,
            [slot.view_in(segment)[part] for segment in self._group.segments],
            total,
        )
        return total

    def _slice(self, slot: Slot, rank: int) -> slice:
        return split_evenly(slot.arrays[0].size, self.num_processes)[rank]

    def _lanes_are_done(self) -> str | None:
        self._group.advance(Phase.REDUCED)
        return self._group.wait_for(Phase.REDUCED)
