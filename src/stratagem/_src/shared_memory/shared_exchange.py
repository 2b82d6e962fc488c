"""``SharedExchange``: reductions between processes that read each other's memory.

Each turn has three marks. *Brought*: what the others need lies in the own area. *Reduced*: the own part of
the result does. *Taken*: nothing of the others is needed any more, and they may write again. Small arrays
are reduced whole by everybody, which saves a mark to wait for; of large ones each process reduces a part.
Everybody adds in the order of the ranks, so all have the same bits.
"""

from __future__ import annotations

import functools
import itertools
import os
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from stratagem._src.shared_memory.area import OwnArea, PeerArea

__all__ = ["PEER_ENDED", "Combination", "SharedExchange"]

_ALIGNMENT = 64
_MARKS_PER_TURN = 3
_BROUGHT, _REDUCED, _TAKEN = 1, 2, 3
_SMALL_BYTES = 64 * 1024
_LOOKS = 50
_YIELDS = 50
_SHORTEST_SLEEP, _LONGEST_SLEEP = 20e-6, 1e-3
_SECONDS_PER_LOOK = 0.01
_ABANDONED = (
    "The exchange through shared memory was given up: the workers are not together any more."
)
PEER_ENDED = "The process of another worker has ended in an exchange through shared memory."


class Combination(IntEnum):
    """What becomes of the arrays that the processes bring."""

    SUM = 0
    MIN = 1
    MAX = 2
    GATHER = 3


_FUNCTIONS: dict[Combination, Callable[..., Any]] = {
    Combination.SUM: np.add,
    Combination.MIN: np.minimum,
    Combination.MAX: np.maximum,
}


class _Place(NamedTuple):
    """An array that is exchanged: what this process brings and gets, and where it lies in every area."""

    array: np.ndarray[Any, Any]
    result: np.ndarray[Any, Any]
    offset: int

    def seen_in(self, area: OwnArea | PeerArea) -> np.ndarray[Any, Any]:
        """Returns the array of an area."""
        return area.view(self.offset, self.array.nbytes).view(self.array.dtype)


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

    def abandon(self) -> None:
        """Ends what waits for other processes, now and later; from any thread."""
        self._is_abandoned = True

    def close(self) -> None:
        """Gives all memory back."""
        self.abandon()
        for area in self._areas:
            area.close()

    def exchange(
        self,
        combination: Combination,
        arrays: Sequence[np.ndarray[Any, Any]],
        results: Sequence[np.ndarray[Any, Any]],
    ) -> str | None:
        """Fills the results with what all processes bring; one thread at a time.

        Args:
            combination: What becomes of the arrays.
            arrays: Flat arrays.
            results: As large as the arrays; of ``GATHER`` as large as those of all processes together.

        Returns:
            What went wrong, if anything.
        """
        places, total = _places(arrays, results)
        if (problem := self._await(0)) is not None:
            return problem
        self._own.reserve(total)
        described = tuple((array.dtype.str, array.size) for array in arrays)
        self._own.set_note(_fingerprint(combination, described))
        is_whole = combination is Combination.GATHER or total <= _SMALL_BYTES
        problem = (self._whole if is_whole else self._in_parts)(combination, places)
        if problem is None:
            self._mark(_TAKEN)
            self._turn += 1
        return problem

    def _whole(self, combination: Combination, places: Sequence[_Place]) -> str | None:
        for place in places:
            place.seen_in(self._own)[:] = place.array
        if (problem := self._bring()) is not None:
            return problem
        for place in places:
            brought = [place.seen_in(area) for area in self._areas]
            if combination is Combination.GATHER:
                np.concatenate(brought, out=place.result)
            else:
                _combine(_FUNCTIONS[combination], brought, place.result)
        return None

    def _in_parts(self, combination: Combination, places: Sequence[_Place]) -> str | None:
        divided = [(place, self._parts(place.array)) for place in places]
        for place, parts in divided:
            mine = place.seen_in(self._own)
            for rank, part in enumerate(parts):
                if rank != self._rank:
                    mine[part] = place.array[part]
        if (problem := self._bring()) is not None:
            return problem
        for place, parts in divided:
            part = parts[self._rank]
            brought = [
                place.array[part] if area is self._own else place.seen_in(area)[part]
                for area in self._areas
            ]
            _combine(_FUNCTIONS[combination], brought, place.result[part])
            place.seen_in(self._own)[part] = place.result[part]
        self._mark(_REDUCED)
        if (problem := self._await(_REDUCED)) is not None:
            return problem
        for place, parts in divided:
            for rank, part in enumerate(parts):
                if rank != self._rank:
                    place.result[part] = place.seen_in(self._areas[rank])[part]
        return None

    def _bring(self) -> str | None:
        self._mark(_BROUGHT)
        if (problem := self._await(_BROUGHT)) is not None:
            return problem
        if any(area.note != self._own.note for area in self._others):
            self.abandon()
            return "The workers exchange different arrays: every worker must run the same program."
        return None

    def _parts(self, array: np.ndarray[Any, Any]) -> list[slice]:
        count = self.num_processes
        cuts = [array.size * i // count for i in range(count + 1)]
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
        return _ABANDONED if self._is_abandoned else None

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
                return _ABANDONED
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


def _combine(
    function: Callable[..., Any],
    brought: Sequence[np.ndarray[Any, Any]],
    result: np.ndarray[Any, Any],
) -> None:
    first, second, *others = brought
    function(first, second, out=result)
    for other in others:
        function(result, other, out=result)


def _places(
    arrays: Sequence[np.ndarray[Any, Any]], results: Sequence[np.ndarray[Any, Any]]
) -> tuple[list[_Place], int]:
    places, total = [], 0
    for array, result in zip(arrays, results, strict=True):
        places.append(_Place(array, result, total))
        total += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
    return places, total


@functools.lru_cache(maxsize=1024)
def _fingerprint(combination: Combination, described: tuple[tuple[str, int], ...]) -> int:
    return zlib.crc32(repr((int(combination), described)).encode())
