"""``LocalGroup``: processes of one machine that take turns in each other's memory.

Each turn has three marks. *Brought*: what the others need lies in the own area. *Reduced*: the own part of
the result does. *Taken*: nothing of the others is needed any more, and they may write again.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from enum import IntEnum

from stratagem._src.collective_backends.shared_memory.area import OwnArea, PeerArea

__all__ = ["ABANDONED", "DIFFERENT", "PEER_ENDED", "LocalGroup", "Mark"]

_SPINS = 50
_YIELDS = 50
_MIN_SLEEP_SECONDS, _MAX_SLEEP_SECONDS = 20e-6, 1e-3
_POLL_SECONDS = 0.01
ABANDONED = (
    "The exchange through shared memory was given up: the workers are not together any more."
)
DIFFERENT = "The workers exchange different arrays: every worker must run the same program."
PEER_ENDED = "The process of another worker has ended in an exchange through shared memory."


class Mark(IntEnum):
    """How far a process is in a turn."""

    BROUGHT = 1
    REDUCED = 2
    TAKEN = 3


class LocalGroup:
    """This process among those of its machine, in the memory of all of them.

    Args:
        rank: The number of this process among them.
        areas: Memory of every process in the order of their ranks; at ``rank`` the own.
    """

    def __init__(self, rank: int, areas: Sequence[OwnArea | PeerArea]) -> None:
        own = areas[rank]
        assert isinstance(own, OwnArea)
        self.rank = rank
        self.areas = areas
        self.own = own
        self._others = [area for area in areas if isinstance(area, PeerArea)]
        self._turn = 0
        self._is_abandoned = False
        self._fence = threading.Lock()
        self._fence.acquire()

    @property
    def size(self) -> int:
        """How many processes there are."""
        return len(self.areas)

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
        for area in self.areas:
            area.close()

    def begin(self, num_bytes: int, note: int) -> str | None:
        """Begins a turn, once the others have taken what they needed of the one before.

        Args:
            num_bytes: How much of the own area is used.
            note: Equal in processes that exchange the same.

        Returns:
            What went wrong, if anything; so do all methods that wait.
        """
        if (problem := self._await(0)) is not None:
            return problem
        self.own.reserve(num_bytes)
        self.own.set_note(note)
        return None

    def bring(self) -> str | None:
        """Says that the own area holds what others need, and waits until theirs do."""
        self.mark(Mark.BROUGHT)
        if (problem := self.wait_for(Mark.BROUGHT)) is not None:
            return problem
        if any(area.note != self.own.note for area in self._others):
            self.abandon()
            return DIFFERENT
        return None

    def mark(self, mark: Mark) -> None:
        """Says how far this process is."""
        self._order_memory()
        self.own.set_mark(len(Mark) * self._turn + mark)

    def wait_for(self, mark: Mark) -> str | None:
        """Waits until all others are as far."""
        return self._await(mark)

    def end(self) -> None:
        """Ends a turn: nothing of the others is needed any more."""
        self.mark(Mark.TAKEN)
        self._turn += 1

    def _await(self, step: int) -> str | None:
        mark = len(Mark) * self._turn + step
        for area in self._others:
            if area.mark < mark and (problem := self._await_one(area, mark)) is not None:
                self.abandon()
                return problem
        self._order_memory()
        return ABANDONED if self._is_abandoned else None

    def _await_one(self, area: PeerArea, mark: int) -> str | None:
        for _ in range(_SPINS):
            if area.mark >= mark:
                return None
        for _ in range(_YIELDS):
            os.sched_yield()
            if area.mark >= mark:
                return None
        pause = _MIN_SLEEP_SECONDS
        next_poll = time.monotonic() + _POLL_SECONDS
        while area.mark < mark:
            if self._is_abandoned:
                return ABANDONED
            time.sleep(pause)
            pause = min(2 * pause, _MAX_SLEEP_SECONDS)
            if time.monotonic() > next_poll:
                # It may have come this far and ended since.
                if area.has_ended() and area.mark < mark:
                    return PEER_ENDED
                next_poll = time.monotonic() + _POLL_SECONDS
        return None

    def _order_memory(self) -> None:
        """Keeps processors from moving reads and writes of memory across this line."""
        self._fence.release()
        self._fence.acquire()
