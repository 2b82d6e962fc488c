"""``LocalGroup``: synchronizes the processes of one host in each other's shared memory.

A collective is one round with three phases. A process publishes each phase in the progress counter of its
own segment, and waits until the counters of its peers have reached the phase:

- ``WRITTEN``: the own segment holds the operands that peers need.
- ``REDUCED``: the own segment holds the own shard of the result.
- ``CONSUMED``: nothing of the peers' segments is needed any more, and they may overwrite them.

The counter grows by three in each round.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from enum import IntEnum

from stratagem._src.collective_backends.shared_memory.segment import OwnSegment, PeerSegment

__all__ = ["ABORTED", "DIFFERENT", "PEER_EXITED", "LocalGroup", "Phase"]

_SPINS = 50
_YIELDS = 50
_MIN_SLEEP_SECONDS, _MAX_SLEEP_SECONDS = 20e-6, 1e-3
_POLL_SECONDS = 0.01
ABORTED = "The collective was aborted: the workers that it was between are no longer one group."
DIFFERENT = (
    "Workers run a collective with different arrays: every worker must run the same program."
)
PEER_EXITED = "The process of another worker exited during a shared-memory collective."


class Phase(IntEnum):
    """The progress of a process in a round."""

    WRITTEN = 1
    REDUCED = 2
    CONSUMED = 3


class LocalGroup:
    """This process among those of its host, synchronized through shared memory.

    Args:
        rank: The rank of this process among them.
        segments: The segments of all processes in the order of their ranks; at ``rank`` the own one.
    """

    def __init__(self, rank: int, segments: Sequence[OwnSegment | PeerSegment]) -> None:
        own = segments[rank]
        assert isinstance(own, OwnSegment)
        self.rank = rank
        self.segments = segments
        self.own = own
        self._peers = [segment for segment in segments if isinstance(segment, PeerSegment)]
        self._round = 0
        self._is_aborted = False
        self._fence = threading.Lock()
        self._fence.acquire()

    @property
    def size(self) -> int:
        """The number of processes."""
        return len(self.segments)

    @property
    def is_aborted(self) -> bool:
        """Whether all further collectives fail."""
        return self._is_aborted

    def abort(self) -> None:
        """Ends all waits for other processes, now and later; from any thread."""
        self._is_aborted = True

    def close(self) -> None:
        """Closes all segments."""
        self.abort()
        for segment in self.segments:
            segment.close()

    def begin(self, num_bytes: int, tag: int) -> str | None:
        """Begins a round, once the peers have consumed the data of the previous one.

        Args:
            num_bytes: How much of the own segment is used.
            tag: Equal in processes that run the same collective.

        Returns:
            The error, if any, like all methods that wait.
        """
        # Phase 0 of this round is the last phase of the previous one: only now may the own segment be
        # overwritten.
        if (problem := self._wait(0)) is not None:
            return problem
        self.own.reserve(num_bytes)
        self.own.set_tag(tag)
        return None

    def publish(self) -> str | None:
        """Publishes that the own segment holds the operands, and waits for those of the peers."""
        self.advance(Phase.WRITTEN)
        if (problem := self.wait_for(Phase.WRITTEN)) is not None:
            return problem
        if any(segment.tag != self.own.tag for segment in self._peers):
            self.abort()
            return DIFFERENT
        return None

    def advance(self, phase: Phase) -> None:
        """Publishes that this process has completed a phase."""
        self._memory_fence()
        self.own.set_progress(len(Phase) * self._round + phase)

    def wait_for(self, phase: Phase) -> str | None:
        """Waits until all peers have completed a phase."""
        return self._wait(phase)

    def end(self) -> None:
        """Ends a round: nothing of the peers' segments is needed any more."""
        self.advance(Phase.CONSUMED)
        self._round += 1

    def _wait(self, phase: int) -> str | None:
        progress = len(Phase) * self._round + phase
        for segment in self._peers:
            if (
                segment.progress < progress
                and (problem := self._wait_for_peer(segment, progress)) is not None
            ):
                self.abort()
                return problem
        self._memory_fence()
        return ABORTED if self._is_aborted else None

    def _wait_for_peer(self, segment: PeerSegment, progress: int) -> str | None:
        # Spins, then yields the CPU, then sleeps with exponential backoff.
        for _ in range(_SPINS):
            if segment.progress >= progress:
                return None
        for _ in range(_YIELDS):
            os.sched_yield()
            if segment.progress >= progress:
                return None
        pause = _MIN_SLEEP_SECONDS
        next_poll = time.monotonic() + _POLL_SECONDS
        while segment.progress < progress:
            if self._is_aborted:
                return ABORTED
            time.sleep(pause)
            pause = min(2 * pause, _MAX_SLEEP_SECONDS)
            if time.monotonic() > next_poll:
                # It may have completed the phase and exited since.
                if segment.has_ended() and segment.progress < progress:
                    return PEER_EXITED
                next_poll = time.monotonic() + _POLL_SECONDS
        return None

    def _memory_fence(self) -> None:
        """Keeps the CPU from moving reads and writes of shared memory across this line.

        Python has no fence; releasing and acquiring a lock is one.
        """
        self._fence.release()
        self._fence.acquire()
