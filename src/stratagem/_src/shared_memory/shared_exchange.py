"""``SharedExchange``: reductions between processes that read each other's memory.

Each turn has three marks. *Brought*: what the others need lies in the own area. *Reduced*: the own part of
the result does. *Taken*: nothing of the others is needed any more, and they may write again. Small arrays
are reduced whole by everybody, which saves a mark to wait for; of large ones each process reduces a part.
Everybody adds in the order of the ranks, so all have the same bits. A process with several devices brings
what these have together.
"""

from __future__ import annotations

import functools
import itertools
import os
import threading
import time
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from stratagem._src.shared_memory.area import OwnArea, PeerArea
from stratagem._src.shared_memory.combination import Combination, combine

__all__ = ["ABANDONED", "DIFFERENT", "PEER_ENDED", "Share", "SharedExchange"]

_ALIGNMENT = 64
_MARKS_PER_TURN = 3
_BROUGHT, _REDUCED, _TAKEN = 1, 2, 3
_SMALL_BYTES = 64 * 1024
_LOOKS = 50
_YIELDS = 50
_SHORTEST_SLEEP, _LONGEST_SLEEP = 20e-6, 1e-3
_SECONDS_PER_LOOK = 0.01
ABANDONED = (
    "The exchange through shared memory was given up: the workers are not together any more."
)
DIFFERENT = "The workers exchange different arrays: every worker must run the same program."
PEER_ENDED = "The process of another worker has ended in an exchange through shared memory."


class Share(NamedTuple):
    """What a device brings, and what it gets: flat arrays.

    Attributes:
        arrays: What it brings.
        results: As large as ``Combination.size`` says.
    """

    arrays: Sequence[np.ndarray[Any, Any]]
    results: Sequence[np.ndarray[Any, Any]]


class _Place(NamedTuple):
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


class SharedExchange:
    """This process among those that exchange arrays, all of them the same at the same turn.

    Args:
        rank: The number of this process.
        areas: Memory of every process in the order of their ranks; at ``rank`` the own.
    """

    def __init__(self, rank: int, areas: Sequence[OwnArea | PeerArea]) -> None:
        own = areas[rank]
        assert isinstance(own, OwnArea)
        self._rank = rank
        self._areas = areas
        self._own = own
        self._others = [area for area in areas if isinstance(area, PeerArea)]
        self._turn = 0
        self._is_abandoned = False
        self._fence = threading.Lock()
        self._fence.acquire()

    @property
    def num_processes(self) -> int:
        """How many processes exchange."""
        return len(self._areas)

    @property
    def is_abandoned(self) -> bool:
        """Whether nothing is exchanged any more."""
        return self._is_abandoned

    def abandon(self) -> None:
        """Ends what waits for other processes, now and later; from any thread."""
        self._is_abandoned = True

    def close(self) -> None:
        """Gives all memory back."""
        self.abandon()
        for area in self._areas:
            area.close()

    def exchange(self, combination: Combination, shares: Sequence[Share]) -> str | None:
        """Fills the results with what all processes bring; one thread at a time.

        Args:
            combination: What becomes of the arrays.
            shares: Of each device of this process; every process has as many.

        Returns:
            What went wrong, if anything.
        """
        described = tuple((array.dtype.str, array.size) for array in shares[0].arrays)
        for share in shares[1:]:
            if tuple((array.dtype.str, array.size) for array in share.arrays) != described:
                self.abandon()
                return DIFFERENT
        places, total = _places(combination, shares)
        if (problem := self._await(0)) is not None:
            return problem
        self._own.reserve(total)
        self._own.set_note(_fingerprint(combination, len(shares), described))
        if combination is Combination.SCATTER:
            problem = self._scattered(combination, places)
        elif combination is Combination.GATHER or total <= _SMALL_BYTES:
            problem = self._whole(combination, places)
        else:
            problem = self._in_parts(combination, places)
        if problem is None:
            self._mark(_TAKEN)
            self._turn += 1
            if combination is not Combination.SCATTER:
                for place in places:
                    place.give_to_all()
        return problem

    def _whole(self, combination: Combination, places: Sequence[_Place]) -> str | None:
        for place in places:
            combine(combination, place.arrays, place.seen_in(self._own))
        if (problem := self._bring()) is not None:
            return problem
        for place in places:
            combine(combination, [place.seen_in(area) for area in self._areas], place.results[0])
        return None

    def _in_parts(self, combination: Combination, places: Sequence[_Place]) -> str | None:
        divided = [(place, self._parts(place)) for place in places]
        if (problem := self._bring_parts(combination, divided)) is not None:
            return problem
        for place, parts in divided:
            part, result = parts[self._rank], place.results[0]
            combine(combination, self._brought(place, part), result[part])
            place.seen_in(self._own)[part] = result[part]
        self._mark(_REDUCED)
        if (problem := self._await(_REDUCED)) is not None:
            return problem
        for place, parts in divided:
            for rank, part in enumerate(parts):
                if rank != self._rank:
                    place.results[0][part] = place.seen_in(self._areas[rank])[part]
        return None

    def _scattered(self, combination: Combination, places: Sequence[_Place]) -> str | None:
        divided = [(place, self._parts(place)) for place in places]
        if (problem := self._bring_parts(combination, divided)) is not None:
            return problem
        for place, parts in divided:
            start = parts[self._rank].start
            for result in place.results:
                part = slice(start, start + result.size)
                combine(combination, self._brought(place, part), result)
                start = part.stop
        return None

    def _bring_parts(
        self, combination: Combination, divided: Sequence[tuple[_Place, list[slice]]]
    ) -> str | None:
        for place, parts in divided:
            mine = place.seen_in(self._own)
            for rank, part in enumerate(parts):
                # A single device brings its own part where it is.
                if rank != self._rank or len(place.arrays) > 1:
                    combine(combination, [array[part] for array in place.arrays], mine[part])
        return self._bring()

    def _brought(self, place: _Place, part: slice) -> list[np.ndarray[Any, Any]]:
        """Returns what each process has brought of a part that this one reduces."""
        brought = [place.seen_in(area)[part] for area in self._areas]
        if len(place.arrays) == 1:
            brought[self._rank] = place.arrays[0][part]
        return brought

    def _bring(self) -> str | None:
        self._mark(_BROUGHT)
        if (problem := self._await(_BROUGHT)) is not None:
            return problem
        if any(area.note != self._own.note for area in self._others):
            self.abandon()
            return DIFFERENT
        return None

    def _parts(self, place: _Place) -> list[slice]:
        count, size = self.num_processes, place.arrays[0].size
        cuts = [size * i // count for i in range(count + 1)]
        return [slice(a, b) for a, b in itertools.pairwise(cuts)]

    # --- marks ------------------------------------------------------------------------------------------

    def _mark(self, step: int) -> None:
        self._order_memory()
        self._own.set_mark(_MARKS_PER_TURN * self._turn + step)

    def _await(self, step: int) -> str | None:
        """Waits until all others are as far; returns why they will not be."""
        mark = _MARKS_PER_TURN * self._turn + step
        for area in self._others:
            if area.mark < mark and (problem := self._await_one(area, mark)) is not None:
                self.abandon()
                return problem
        self._order_memory()
        return ABANDONED if self._is_abandoned else None

    def _await_one(self, area: PeerArea, mark: int) -> str | None:
        for _ in range(_LOOKS):
            if area.mark >= mark:
                return None
        for _ in range(_YIELDS):
            os.sched_yield()
            if area.mark >= mark:
                return None
        pause = _SHORTEST_SLEEP
        next_look = time.monotonic() + _SECONDS_PER_LOOK
        while area.mark < mark:
            if self._is_abandoned:
                return ABANDONED
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_SLEEP)
            if time.monotonic() > next_look:
                # It may have come this far and ended since.
                if area.has_ended() and area.mark < mark:
                    return PEER_ENDED
                next_look = time.monotonic() + _SECONDS_PER_LOOK
        return None

    def _order_memory(self) -> None:
        """Keeps processors from moving reads and writes of memory across this line."""
        self._fence.release()
        self._fence.acquire()


def _places(combination: Combination, shares: Sequence[Share]) -> tuple[list[_Place], int]:
    copies = len(shares) if combination is Combination.GATHER else 1
    places, total = [], 0
    for arrays, results in zip(
        zip(*(share.arrays for share in shares), strict=True),
        zip(*(share.results for share in shares), strict=True),
        strict=True,
    ):
        num_bytes = copies * arrays[0].nbytes
        places.append(_Place(list(arrays), list(results), total, num_bytes))
        total += -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
    return places, total


@functools.lru_cache(maxsize=1024)
def _fingerprint(
    combination: Combination, num_devices: int, described: tuple[tuple[str, int], ...]
) -> int:
    return zlib.crc32(repr((int(combination), num_devices, described)).encode())
