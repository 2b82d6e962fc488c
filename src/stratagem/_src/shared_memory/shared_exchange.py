"""``SharedExchange``: reductions between processes that read each other's memory.

Each turn has three marks. *Brought*: what the others need lies in the own area. *Reduced*: the own part of
the result does. *Taken*: nothing of the others is needed any more, and they may write again. Small arrays
are reduced whole by everybody, which saves a mark to wait for; of large ones each process reduces a part.
Everybody adds in the order of the ranks, so all have the same bits.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any

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
        offsets, total = _places(arrays)
        if (problem := self._await(0)) is not None:
            return problem
        self._own.reserve(total)
        self._own.set_note(_fingerprint(combination, arrays))
        is_whole = combination is Combination.GATHER or total <= _SMALL_BYTES
        work = self._whole if is_whole else self._in_parts
        problem = work(combination, arrays, results, offsets)
        if problem is None:
            self._mark(_TAKEN)
            self._turn += 1
        return problem

    def _whole(
        self,
        combination: Combination,
        arrays: Sequence[np.ndarray[Any, Any]],
        results: Sequence[np.ndarray[Any, Any]],
        offsets: Sequence[int],
    ) -> str | None:
        for array, offset in zip(arrays, offsets, strict=True):
            self._seen(self._own, array, offset)[:] = array
        if (problem := self._bring()) is not None:
            return problem
        for array, result, offset in zip(arrays, results, offsets, strict=True):
            brought = [self._seen(area, array, offset) for area in self._areas]
            if combination is Combination.GATHER:
                np.concatenate(brought, out=result)
            else:
                _combine(_FUNCTIONS[combination], brought, result)
        return None

    def _in_parts(
        self,
        combination: Combination,
        arrays: Sequence[np.ndarray[Any, Any]],
        results: Sequence[np.ndarray[Any, Any]],
        offsets: Sequence[int],
    ) -> str | None:
        parts = [self._parts(array) for array in arrays]
        places = list(zip(arrays, results, offsets, parts, strict=True))
        for array, _, offset, cuts in places:
            mine = self._seen(self._own, array, offset)
            for rank, part in enumerate(cuts):
                if rank != self._rank:
                    mine[part] = array[part]
        if (problem := self._bring()) is not None:
            return problem
        for array, result, offset, cuts in places:
            part = cuts[self._rank]
            brought = [
                array[part] if area is self._own else self._seen(area, array, offset)[part]
                for area in self._areas
            ]
            _combine(_FUNCTIONS[combination], brought, result[part])
            self._seen(self._own, array, offset)[part] = result[part]
        self._mark(_REDUCED)
        if (problem := self._await(_REDUCED)) is not None:
            return problem
        for array, result, offset, cuts in places:
            for rank, part in enumerate(cuts):
                if rank != self._rank:
                    result[part] = self._seen(self._areas[rank], array, offset)[part]
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

    @staticmethod
    def _seen(
        area: OwnArea | PeerArea, like: np.ndarray[Any, Any], offset: int
    ) -> np.ndarray[Any, Any]:
        return area.view(offset, like.nbytes).view(like.dtype)

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


def _places(arrays: Sequence[np.ndarray[Any, Any]]) -> tuple[list[int], int]:
    offsets, total = [], 0
    for array in arrays:
        offsets.append(total)
        total += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
    return offsets, total


def _fingerprint(combination: Combination, arrays: Sequence[np.ndarray[Any, Any]]) -> int:
    described = [(array.dtype.str, array.size) for array in arrays]
    return zlib.crc32(repr((int(combination), described)).encode())
