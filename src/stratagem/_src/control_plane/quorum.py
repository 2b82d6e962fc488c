"""``Quorum``: decides which workers continue after a loss or a join request. A state machine without I/O.

Every member of the old generation that can continue reports to the first such member, the leader. The
leader decides once it knows the fate of every member: ready, ended, or without a heartbeat for too long.

A member that misses heartbeats may still be running on the other side of a network partition, so the
surviving members need a quorum: more than half of the members that are not known to have ended, or exactly
half of them including the first. Two sides of a partition can never both satisfy that rule.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from stratagem._src.control_plane.generation import Generation, Member, in_order

__all__ = ["Decision", "GiveUp", "JoinRequests", "Pending", "Quorum", "Resume"]

_REQUEST_LIFETIME_SECONDS = 3.0
"""A join request or a ready report expires after this time; senders repeat it several times a second."""


@dataclass(frozen=True, slots=True)
class Pending:
    """No decision yet; ``text`` says what is missing."""

    text: str


@dataclass(frozen=True, slots=True)
class Resume:
    """These members form the next generation, in rank order."""

    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class GiveUp:
    """There is no quorum or there are too few workers, and the timeout has passed."""

    text: str


Decision = Pending | Resume | GiveUp


class Quorum:
    """Tracks the members of one generation after a loss, and decides who forms the next one.

    >>> members = tuple(Member("worker", i, f"host:{i}", f"process {i}") for i in range(3))
    >>> quorum = Quorum(Generation(1, "", members, ""), 2, 8.0, 60.0, now=0.0)
    >>> quorum.ready("process 0", now=0.1)
    >>> quorum.decide(now=0.1)
    Pending(text='worker 1 (host:1), worker 2 (host:2)')
    >>> quorum.ended("process 1")
    >>> quorum.ready("process 2", now=0.2)
    >>> [str(member) for member in quorum.decide(now=0.2).members]
    ['worker 0 (host:0)', 'worker 2 (host:2)']

    Args:
        generation: The generation that has ended.
        min_workers: The minimum size of the next generation, joining workers included.
        silent_seconds: Seconds without an answer after which a member is left behind.
        timeout: Seconds to wait for the other members.
        now: The time at which the generation ended.
    """

    def __init__(
        self,
        generation: Generation,
        min_workers: int,
        silent_seconds: float,
        timeout: float,
        *,
        now: float,
    ) -> None:
        self.generation = generation
        self._min_workers = min_workers
        self._silent_seconds = silent_seconds
        self._timeout = timeout
        self._began = now
        self._ready: dict[str, float] = {}
        self._ended: set[str] = set()
        self._heard: dict[str, float] = {}

    # --- events -------------------------------------------------------------------------------------

    def ready(self, incarnation: str, *, now: float) -> None:
        """Records that a member can continue. Members repeat this while they wait."""
        self._ready[incarnation] = self._heard[incarnation] = now

    def answered(self, incarnation: str, *, now: float) -> None:
        """Records that a member is alive, although it does not know yet that the generation has ended."""
        self._heard[incarnation] = now

    def suspect(self, incarnation: str) -> None:
        """Records that a member had missed heartbeats for the whole timeout when the generation ended.

        The others do not wait for it a second time. If it comes back, it either reports before all others
        are ready, or learns that they have continued without it.
        """
        self._heard.setdefault(incarnation, -math.inf)

    def ended(self, incarnation: str) -> None:
        """Records that the process of a member is known to have ended."""
        self._ended.add(incarnation)

    # --- findings -----------------------------------------------------------------------------------

    def has_ended(self, member: Member) -> bool:
        """Returns whether the process of a member is known to have ended."""
        return member.incarnation in self._ended

    def is_silent(self, member: Member, now: float) -> bool:
        """Returns whether a member has been unreachable for too long."""
        heard = self._heard.get(member.incarnation, self._began)
        return not self.has_ended(member) and now - heard > self._silent_seconds

    def is_ready(self, member: Member, now: float) -> bool:
        """Returns whether a member has reported recently that it can continue."""
        said = self._ready.get(member.incarnation)
        return (
            said is not None
            and now - said < _REQUEST_LIFETIME_SECONDS
            and not self.has_ended(member)
        )

    def leader(self, now: float) -> Member | None:
        """Returns the member that decides: the first one that has neither ended nor gone silent."""
        for member in self.generation.members:
            if not self.has_ended(member) and not self.is_silent(member, now):
                return member
        return None

    def decide(self, now: float, joining: tuple[Member, ...] = ()) -> Decision:
        """Returns the decision, as far as it can be made now.

        Args:
            now: The time.
            joining: The workers that request to join.
        """
        members = self.generation.members
        ready = [member for member in members if self.is_ready(member, now)]
        awaited = [
            member
            for member in members
            if member not in ready
            and not self.has_ended(member)
            and not self.is_silent(member, now)
        ]
        is_late = now - self._began > self._timeout
        if awaited and not is_late:
            return Pending(_names(awaited))
        # Of workers 0 to 4, worker 1 has ended and worker 3 misses heartbeats. Uncertain are 0, 2, 3 and 4,
        # of which three are ready: more than half. Worker 3, wherever it runs, is one of four, and can
        # never get a quorum.
        uncertain = [member for member in members if not self.has_ended(member)]
        # Joining workers do not count here: they say nothing about the other side of a partition.
        if not _is_quorum(ready, uncertain):
            missing = [member for member in uncertain if member not in ready]
            text = f"{_names(missing)}, which may continue without {_names(ready)}"
            return GiveUp(text) if is_late else Pending(text)
        chosen = in_order([*ready, *_admissible(joining, ready)])
        if len(chosen) < self._min_workers:
            missing = [member for member in members if member not in ready]
            text = (
                f"{self._min_workers - len(chosen)} more of at least {self._min_workers} workers, in "
                f"place of {_names(missing) or 'those that are missing'}"
            )
            return GiveUp(text) if is_late else Pending(text)
        return Resume(chosen)


def _is_quorum(ready: list[Member], uncertain: list[Member]) -> bool:
    # On a tie the side with the first member wins; the other side sees the same tie and loses.
    if 2 * len(ready) == len(uncertain):
        return bool(ready) and ready[0] == uncertain[0]
    return 2 * len(ready) > len(uncertain)


def _admissible(joining: tuple[Member, ...], ready: list[Member]) -> list[Member]:
    """Returns the joining workers whose tasks are vacant: one for each task."""
    taken = {member.task for member in ready}
    by_task = {member.task: member for member in joining if member.task not in taken}
    return list(by_task.values())


def _names(members: list[Member]) -> str:
    return ", ".join(map(str, members))


class JoinRequests:
    """The workers that request to join. A request expires unless the worker repeats it.

    >>> requests = JoinRequests()
    >>> requests.add(Member("worker", 1, "host:1", "process"), now=0.0)
    >>> len(requests.pending(now=1.0)), len(requests.pending(now=9.0))
    (1, 0)
    """

    def __init__(self) -> None:
        self._requests: dict[str, tuple[Member, float]] = {}

    def add(self, member: Member, *, now: float) -> None:
        """Adds or renews the request of a process."""
        self._requests[member.incarnation] = member, now

    def pending(self, now: float) -> tuple[Member, ...]:
        """Returns the processes whose requests have not expired."""
        self._requests = {
            incarnation: (member, requested)
            for incarnation, (member, requested) in self._requests.items()
            if now - requested < _REQUEST_LIFETIME_SECONDS
        }
        return tuple(member for member, _ in self._requests.values())

    def admit(self, members: tuple[Member, ...]) -> None:
        """Removes the requests of processes that have been admitted."""
        for member in members:
            self._requests.pop(member.incarnation, None)
