"""Who goes on when workers are lost, or others come: events in, a verdict out, no I/O.

The members of a generation that can go on tell the first of them, which decides when it knows of every
member: it goes on too, or its process has ended, or nobody has heard of it for some time. Of those that
are only silent nobody knows whether they go on elsewhere, behind a network that has come apart. So at
least half of the members that are not known to have ended must go on together, and if it is half of
them the first member must be among them: another such part cannot exist.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from stratagem._src.control_plane.generation import Generation, Member, in_order

__all__ = ["GiveUp", "Go", "Newcomers", "Succession", "Verdict", "Wait"]

_FRESH_SECONDS = 3.0
"""Who asks to be let in, or says that it can go on, says so several times a second while it waits."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Not yet: what it waits for."""

    text: str


@dataclass(frozen=True, slots=True)
class Go:
    """These go on, in the order of their ranks."""

    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Too few can go on, and nobody else came in time."""

    text: str


Verdict = Wait | Go | GiveUp


class Succession:
    """Knows what has become of the members of one generation, and who wants to be in the next.

    >>> members = tuple(Member("worker", i, f"host:{i}", f"process {i}") for i in range(3))
    >>> succession = Succession(Generation(1, "", members, ""), 2, 8.0, 60.0, now=0.0)
    >>> succession.ready("process 0", now=0.1)
    >>> succession.verdict(now=0.1)
    Wait(text='worker 1 (host:1), worker 2 (host:2)')
    >>> succession.ended("process 1")
    >>> succession.ready("process 2", now=0.2)
    >>> [str(member) for member in succession.verdict(now=0.2).members]
    ['worker 0 (host:0)', 'worker 2 (host:2)']

    Args:
        generation: The generation that is over.
        min_workers: How many must go on, with those that come.
        silent_seconds: After how long a member that does not answer is left behind.
        timeout: How many seconds the others are waited for.
        now: The time at which it was over.
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
        """Notes that a member can go on; to be said again and again."""
        self._ready[incarnation] = self._heard[incarnation] = now

    def answered(self, incarnation: str, *, now: float) -> None:
        """Notes that a member is there, though it does not know yet that the generation is over."""
        self._heard[incarnation] = now

    def suspect(self, incarnation: str) -> None:
        """Notes that a member was silent for the heartbeat timeout when the generation was over.

        It is not waited for again. If it has come back, it says so before the others have all met, or
        finds that they have gone on.
        """
        self._heard.setdefault(incarnation, -math.inf)

    def ended(self, incarnation: str) -> None:
        """Notes that the process of a member has ended, for sure."""
        self._ended.add(incarnation)

    # --- findings -----------------------------------------------------------------------------------

    def has_ended(self, member: Member) -> bool:
        """Returns whether the process of a member is known to have ended."""
        return member.incarnation in self._ended

    def is_silent(self, member: Member, now: float) -> bool:
        """Returns whether nobody has heard of a member for too long."""
        heard = self._heard.get(member.incarnation, self._began)
        return not self.has_ended(member) and now - heard > self._silent_seconds

    def is_ready(self, member: Member, now: float) -> bool:
        """Returns whether a member says that it can go on."""
        said = self._ready.get(member.incarnation)
        return said is not None and now - said < _FRESH_SECONDS and not self.has_ended(member)

    def leader(self, now: float) -> Member | None:
        """Returns who decides: the first member that is neither known to have ended nor silent."""
        for member in self.generation.members:
            if not self.has_ended(member) and not self.is_silent(member, now):
                return member
        return None

    def verdict(self, now: float, newcomers: tuple[Member, ...] = ()) -> Verdict:
        """Returns who goes on, as far as it is known.

        Args:
            now: The time.
            newcomers: Who asks to be let in.
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
            return Wait(_names(awaited))
        uncertain = [member for member in members if not self.has_ended(member)]
        if not _is_one_part(ready, uncertain):
            missing = [member for member in uncertain if member not in ready]
            text = f"{_names(missing)}, which may go on without {_names(ready)}"
            return GiveUp(text) if is_late else Wait(text)
        chosen = in_order([*ready, *_successors(newcomers, ready)])
        if len(chosen) < self._min_workers:
            missing = [member for member in members if member not in ready]
            text = (
                f"{self._min_workers - len(chosen)} more of at least {self._min_workers} workers, in "
                f"place of {_names(missing) or 'those that are missing'}"
            )
            return GiveUp(text) if is_late else Wait(text)
        return Go(chosen)


def _is_one_part(ready: list[Member], uncertain: list[Member]) -> bool:
    if 2 * len(ready) == len(uncertain):
        return bool(ready) and ready[0] == uncertain[0]
    return 2 * len(ready) > len(uncertain)


def _successors(newcomers: tuple[Member, ...], ready: list[Member]) -> list[Member]:
    """Returns the newcomers whose tasks nobody has: one for each."""
    taken = {member.task for member in ready}
    by_task = {member.task: member for member in newcomers if member.task not in taken}
    return list(by_task.values())


def _names(members: list[Member]) -> str:
    return ", ".join(map(str, members))


class Newcomers:
    """Who asks to be let in; whoever stops asking is forgotten.

    >>> newcomers = Newcomers()
    >>> newcomers.knock(Member("worker", 1, "host:1", "process"), now=0.0)
    >>> len(newcomers.waiting(now=1.0)), len(newcomers.waiting(now=9.0))
    (1, 0)
    """

    def __init__(self) -> None:
        self._knocked: dict[str, tuple[Member, float]] = {}

    def knock(self, member: Member, *, now: float) -> None:
        """Notes that a process asks."""
        self._knocked[member.incarnation] = member, now

    def waiting(self, now: float) -> tuple[Member, ...]:
        """Returns who asks now."""
        self._knocked = {
            incarnation: (member, knocked)
            for incarnation, (member, knocked) in self._knocked.items()
            if now - knocked < _FRESH_SECONDS
        }
        return tuple(member for member, _ in self._knocked.values())

    def admit(self, members: tuple[Member, ...]) -> None:
        """Forgets those that have been let in."""
        for member in members:
            self._knocked.pop(member.incarnation, None)
