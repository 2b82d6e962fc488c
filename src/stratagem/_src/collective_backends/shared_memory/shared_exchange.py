"""``SharedExchange``: reductions between processes that read each other's memory.

Small arrays are reduced whole by every process, which saves a mark to wait for; of large ones each process
reduces a part. All add in the order of the ranks, so all have the same bits. A process with several
devices brings what these have together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from stratagem._src.collective_backends.shared_memory.area import OwnArea, PeerArea
from stratagem._src.collective_backends.shared_memory.combination import Combination, combine
from stratagem._src.collective_backends.shared_memory.exchanged_array import (
    ExchangedArray,
    Share,
    cut,
    fingerprint,
    lay_out,
)
from stratagem._src.collective_backends.shared_memory.local_group import DIFFERENT, LocalGroup, Mark

__all__ = ["SMALL_BYTES", "ArrayExchange", "SharedExchange"]

SMALL_BYTES = 64 * 1024
"""Up to here an array costs more to divide than to move whole."""


class ArrayExchange(Protocol):
    """This process among those that exchange arrays, all of them the same at the same turn."""

    @property
    def num_processes(self) -> int:
        """How many processes exchange."""

    @property
    def is_abandoned(self) -> bool:
        """Whether nothing is exchanged any more."""

    def exchange(self, combination: Combination, shares: Sequence[Share]) -> str | None:
        """Fills the results with what all processes bring; one thread at a time.

        Args:
            combination: What becomes of the arrays.
            shares: Of each device of this process; every process has as many.

        Returns:
            What went wrong, if anything.
        """

    def abandon(self) -> None:
        """Ends what waits for other processes, now and later; from any thread."""

    def close(self) -> None:
        """Gives back all that the exchange has."""


class SharedExchange:
    """An ``ArrayExchange`` between processes of one machine.

    Args:
        rank: The number of this process.
        areas: Memory of every process in the order of their ranks; at ``rank`` the own.
    """

    def __init__(self, rank: int, areas: Sequence[OwnArea | PeerArea]) -> None:
        self._group = LocalGroup(rank, areas)

    @property
    def num_processes(self) -> int:
        """How many processes exchange."""
        return self._group.size

    @property
    def is_abandoned(self) -> bool:
        """Whether nothing is exchanged any more."""
        return self._group.is_abandoned

    def abandon(self) -> None:
        """Ends what waits for other processes, now and later; from any thread."""
        self._group.abandon()

    def close(self) -> None:
        """Gives all memory back."""
        self._group.close()

    def exchange(self, combination: Combination, shares: Sequence[Share]) -> str | None:
        """Fills the results with what all processes bring; see ``ArrayExchange``."""
        note = fingerprint(combination, shares)
        if note is None:
            self.abandon()
            return DIFFERENT
        copies = len(shares) if combination is Combination.GATHER else 1
        places, total = lay_out(shares, copies)
        if (problem := self._group.begin(total, note)) is not None:
            return problem
        if combination is Combination.SCATTER:
            problem = self._scattered(combination, places)
        elif combination is Combination.GATHER or total <= SMALL_BYTES:
            problem = self._whole(combination, places)
        else:
            problem = self._in_parts(combination, places)
        if problem is None:
            self._group.end()
            if combination is not Combination.SCATTER:
                for place in places:
                    place.give_to_all()
        return problem

    def _whole(self, combination: Combination, places: Sequence[ExchangedArray]) -> str | None:
        for place in places:
            combine(combination, place.arrays, place.seen_in(self._group.own))
        if (problem := self._group.bring()) is not None:
            return problem
        for place in places:
            brought = [place.seen_in(area) for area in self._group.areas]
            combine(combination, brought, place.results[0])
        return None

    def _in_parts(self, combination: Combination, places: Sequence[ExchangedArray]) -> str | None:
        divided = [(place, self._parts(place)) for place in places]
        if (problem := self._bring_parts(combination, divided)) is not None:
            return problem
        for place, parts in divided:
            part, result = parts[self._group.rank], place.results[0]
            combine(combination, self._brought(place, part), result[part])
            place.seen_in(self._group.own)[part] = result[part]
        self._group.mark(Mark.REDUCED)
        if (problem := self._group.wait_for(Mark.REDUCED)) is not None:
            return problem
        for place, parts in divided:
            for rank, part in enumerate(parts):
                if rank != self._group.rank:
                    place.results[0][part] = place.seen_in(self._group.areas[rank])[part]
        return None

    def _scattered(self, combination: Combination, places: Sequence[ExchangedArray]) -> str | None:
        divided = [(place, self._parts(place)) for place in places]
        if (problem := self._bring_parts(combination, divided)) is not None:
            return problem
        for place, parts in divided:
            start = parts[self._group.rank].start
            for result in place.results:
                part = slice(start, start + result.size)
                combine(combination, self._brought(place, part), result)
                start = part.stop
        return None

    def _bring_parts(
        self, combination: Combination, divided: Sequence[tuple[ExchangedArray, list[slice]]]
    ) -> str | None:
        for place, parts in divided:
            mine = place.seen_in(self._group.own)
            for rank, part in enumerate(parts):
                # A single device brings its own part where it is.
                if rank != self._group.rank or len(place.arrays) > 1:
                    combine(combination, [array[part] for array in place.arrays], mine[part])
        return self._group.bring()

    def _brought(self, place: ExchangedArray, part: slice) -> list[np.ndarray[Any, Any]]:
        """Returns what each process has brought of a part that this one reduces."""
        brought = [place.seen_in(area)[part] for area in self._group.areas]
        if len(place.arrays) == 1:
            brought[self._group.rank] = place.arrays[0][part]
        return brought

    def _parts(self, place: ExchangedArray) -> list[slice]:
        return cut(place.arrays[0].size, self._group.size)
