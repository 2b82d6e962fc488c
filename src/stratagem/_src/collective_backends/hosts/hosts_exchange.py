"""``HostsExchange``: reductions between processes on several hosts.

The processes of a host combine what they have in shared memory. Then each lane carries its part between the
hosts, and puts what becomes of it into its area, where the other processes of its host take it. All results
are computed once and copied, so all workers have the same bits.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from stratagem._src.collective_backends.hosts.host_layout import HostLayout
from stratagem._src.collective_backends.hosts.host_link import HostLink
from stratagem._src.collective_backends.hosts.owned_reduction import Chunk
from stratagem._src.collective_backends.shared_memory.area import OwnArea, PeerArea
from stratagem._src.collective_backends.shared_memory.combination import Combination, combine
from stratagem._src.collective_backends.shared_memory.exchanged_array import (
    ExchangedArray,
    Share,
    cut,
    fingerprint,
    lay_out,
)
from stratagem._src.collective_backends.shared_memory.local_group import (
    ABANDONED,
    DIFFERENT,
    LocalGroup,
    Mark,
)
from stratagem._src.collective_backends.shared_memory.shared_exchange import SMALL_BYTES

__all__ = ["HostsExchange"]


class HostsExchange:
    """An ``ArrayExchange`` between processes on several hosts.

    Args:
        rank: The number of this process in the job.
        layout: Which processes are on which host.
        areas: Memory of every process of this host, in the order of their ranks.
        link: The connections of this process to other hosts; ``None`` if it is in no lane.
    """

    def __init__(
        self,
        rank: int,
        layout: HostLayout,
        areas: Sequence[OwnArea | PeerArea],
        link: HostLink | None,
    ) -> None:
        self._rank = rank
        self._layout = layout
        self._host = layout.host_of(rank)
        self._group = LocalGroup(layout.local_rank(rank), areas)
        self._link = link
        self._scratch = np.empty(0, np.uint8)

    @property
    def num_processes(self) -> int:
        """How many processes exchange."""
        return self._layout.num_processes

    @property
    def is_abandoned(self) -> bool:
        """Whether nothing is exchanged any more."""
        return self._group.is_abandoned

    def unacknowledged_seconds(self) -> dict[int, float]:
        """Returns for how long other processes, by rank, have acknowledged nothing; from any thread."""
        if self._link is None:
            return {}
        peers = self._layout.lane_peers(self._rank)
        return {peers[host]: s for host, s in self._link.unacknowledged_seconds().items()}

    def abandon(self) -> None:
        """Ends what waits for other processes, now and later; from any thread."""
        self._group.abandon()
        if self._link is not None:
            self._link.interrupt()

    def close(self) -> None:
        """Ends the connections and gives all memory back."""
        self._group.close()
        if self._link is not None:
            self._link.close()

    def exchange(self, combination: Combination, shares: Sequence[Share]) -> str | None:
        """Fills the results with what all processes bring; see ``ArrayExchange``."""
        note = fingerprint(combination, shares)
        if note is None:
            self.abandon()
            return DIFFERENT
        copies = self.num_processes * len(shares) if combination is Combination.GATHER else 1
        places, total = lay_out(shares, copies)
        problem = self._group.begin(total, note)
        if problem is None:
            if combination is Combination.GATHER:
                problem = self._gather(places, note)
            elif combination is Combination.SCATTER:
                problem = self._scatter(places, note)
            else:
                problem = self._reduce(combination, places, note, is_small=total <= SMALL_BYTES)
        if problem is not None:
            was_abandoned = self.is_abandoned
            self.abandon()
            return ABANDONED if was_abandoned else problem
        self._group.end()
        if combination is not Combination.SCATTER:
            for place in places:
                place.give_to_all()
        return None

    # --- SUM, MIN, MAX ----------------------------------------------------------------------------------

    def _reduce(
        self,
        combination: Combination,
        places: Sequence[ExchangedArray],
        note: int,
        *,
        is_small: bool,
    ) -> str | None:
        if self._group.size == 1:
            return self._reduce_alone(combination, places, note)
        divided = [(place, self._lanes(place.arrays[0].size, is_small)) for place in places]
        for place, parts in divided:
            mine = place.seen_in(self._group.own)
            for local, part in enumerate(parts):
                # A single device brings what this process carries itself where it is.
                if local != self._group.rank or len(place.arrays) > 1:
                    combine(combination, [array[part] for array in place.arrays], mine[part])
        if (problem := self._group.bring()) is not None:
            return problem
        if self._link is not None:
            problem = self._reduce_lane(combination, divided, note, self._link)
            if problem is not None:
                return problem
        if (problem := self._lanes_are_done()) is not None:
            return problem
        for place, parts in divided:
            for local, part in enumerate(parts):
                if local != self._group.rank:
                    place.results[0][part] = place.seen_in(self._group.areas[local])[part]
        return None

    def _reduce_alone(
        self, combination: Combination, places: Sequence[ExchangedArray], note: int
    ) -> str | None:
        """Reduces on a host with one process: nothing has to go through memory."""
        operands = []
        for place in places:
            operand = place.arrays[0]
            if len(place.arrays) > 1:
                operand = place.seen_in(self._group.own)
                combine(combination, place.arrays, operand)
            operands.append(operand)
        assert self._link is not None
        results = [place.results[0] for place in places]
        return self._link.all_reduce(combination, operands, results, note)

    def _reduce_lane(
        self,
        combination: Combination,
        divided: Sequence[tuple[ExchangedArray, list[slice]]],
        note: int,
        link: HostLink,
    ) -> str | None:
        mine = [parts[self._group.rank] for _, parts in divided]
        operands = self._scratch_for(
            [
                (part.stop - part.start, p.arrays[0].dtype)
                for part, (p, _) in zip(mine, divided, strict=True)
            ]
        )
        results = [place.results[0][part] for part, (place, _) in zip(mine, divided, strict=True)]
        areas = [
            place.seen_in(self._group.own)[part]
            for part, (place, _) in zip(mine, divided, strict=True)
        ]
        brought = [
            [place.seen_in(area)[part] for area in self._group.areas]
            for part, (place, _) in zip(mine, divided, strict=True)
        ]
        for of_place, part, (place, _) in zip(brought, mine, divided, strict=True):
            if len(place.arrays) == 1:
                of_place[self._group.rank] = place.arrays[0][part]
        prepared: set[tuple[int, int]] = set()
        preparing = threading.Lock()

        def prepare(chunk: Chunk) -> None:
            """Combines what the processes of this host have, while other chunks travel."""
            with preparing:
                if (key := (chunk.array, chunk.part.start)) not in prepared:
                    addends = [array[chunk.part] for array in brought[chunk.array]]
                    combine(combination, addends, chunk.of(operands))
                    prepared.add(key)

        def publish(chunk: Chunk) -> None:
            # The addends of others in this part have been read, by this process alone.
            chunk.of(areas)[:] = chunk.of(results)

        return link.all_reduce(combination, operands, results, note, prepare, publish)

    def _scratch_for(self, wanted: Sequence[tuple[int, Any]]) -> list[np.ndarray[Any, Any]]:
        """Returns arrays of sizes and dtypes, in memory that is kept: new memory costs page faults."""
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
        """Returns which part of an array each process of this host carries between hosts."""
        num_lanes = 1 if is_small else self._layout.num_lanes
        parts = cut(size, num_lanes)
        return parts + [slice(size, size)] * (self._group.size - num_lanes)

    # --- GATHER -----------------------------------------------------------------------------------------

    def _gather(self, places: Sequence[ExchangedArray], note: int) -> str | None:
        """Gathers: every lane brings blocks of other hosts into its area, where all take them."""
        for place in places:
            combine(
                Combination.GATHER, place.arrays, self._block(place, self._group.own, self._rank)
            )
        if (problem := self._group.bring()) is not None:
            return problem
        if self._link is not None:
            lane, own = self._group.rank, self._group.own
            sent = [
                self._block(place, self._group.areas[self._layout.local_rank(rank)], rank)
                for rank in self._layout.ranks_of_lane(self._host, lane)
                for place in places
            ]
            received = {
                host: [
                    self._block(place, own, rank)
                    for rank in self._layout.ranks_of_lane(host, lane)
                    for place in places
                ]
                for host in self._layout.lane_peers(self._rank)
            }
            if (
                problem := self._link.swap(dict.fromkeys(received, sent), received, note)
            ) is not None:
                return problem
        if (problem := self._lanes_are_done()) is not None:
            return problem
        for host, ranks in enumerate(self._layout.hosts):
            for local, rank in enumerate(ranks):
                holder = local if host == self._host else local % self._layout.num_lanes
                for place in places:
                    block = self._block(place, self._group.areas[holder], rank)
                    place.results[0][rank * block.size : (rank + 1) * block.size] = block
        return None

    def _block(
        self, place: ExchangedArray, area: OwnArea | PeerArea, rank: int
    ) -> np.ndarray[Any, Any]:
        """Returns what a process brings to be gathered, as an area has it."""
        size = len(place.arrays) * place.arrays[0].size
        return place.seen_in(area)[rank * size : (rank + 1) * size]

    # --- SCATTER ----------------------------------------------------------------------------------------

    def _scatter(self, places: Sequence[ExchangedArray], note: int) -> str | None:
        """Scatters sums: a lane sums, on each host, what is for the processes that it serves there."""
        for place in places:
            combine(Combination.SUM, place.arrays, place.seen_in(self._group.own))
        if (problem := self._group.bring()) is not None:
            return problem
        if self._link is not None and (problem := self._scatter_lane(places, note, self._link)):
            return problem
        if (problem := self._lanes_are_done()) is not None:
            return problem
        holder = self._group.areas[self._group.rank % self._layout.num_lanes]
        for place in places:
            scattered = place.seen_in(holder)[self._slice(place, self._rank)]
            for result, part in zip(
                place.results, cut(scattered.size, len(place.results)), strict=True
            ):
                result[:] = scattered[part]
        return None

    def _scatter_lane(
        self, places: Sequence[ExchangedArray], note: int, link: HostLink
    ) -> str | None:
        def served(host: int) -> list[tuple[ExchangedArray, int]]:
            ranks = self._layout.ranks_of_lane(host, self._group.rank)
            return [(place, rank) for rank in ranks for place in places]

        own = [self._local_sum(place, rank) for place, rank in served(self._host)]
        outgoing = {
            host: [self._local_sum(place, rank) for place, rank in served(host)]
            for host in self._layout.lane_peers(self._rank)
        }
        brought = {host: [np.empty_like(array) for array in own] for host in outgoing}
        if (problem := link.swap(outgoing, brought, note)) is not None:
            return problem
        # Only this lane reads addends of these slices, and it has read them.
        results = [
            place.seen_in(self._group.own)[self._slice(place, rank)]
            for place, rank in served(self._host)
        ]
        link.combine(Combination.SUM, own, brought, results)
        return None

    def _local_sum(self, place: ExchangedArray, rank: int) -> np.ndarray[Any, Any]:
        part = self._slice(place, rank)
        total = np.empty(part.stop - part.start, place.arrays[0].dtype)
        combine(Combination.SUM, [place.seen_in(area)[part] for area in self._group.areas], total)
        return total

    def _slice(self, place: ExchangedArray, rank: int) -> slice:
        return cut(place.arrays[0].size, self.num_processes)[rank]

    def _lanes_are_done(self) -> str | None:
        self._group.mark(Mark.REDUCED)
        return self._group.wait_for(Mark.REDUCED)
