"""``Generation``: the workers of an elastic job from one forming to the next."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from stratagem._src.cluster.errors import RendezvousError
from stratagem._src.cluster.leadership import Task

__all__ = ["Generation", "Member", "in_order", "new_incarnation"]

_SHOWN_CHARACTERS = 200


def new_incarnation() -> str:
    """Returns what tells this process from one that had its task before."""
    return secrets.token_hex(8)


@dataclass(frozen=True, slots=True)
class Member:
    """One process of an elastic job.

    Attributes:
        job: The job of its task.
        index: The index of its task.
        address: Where its council answers.
        incarnation: Tells it from another process that has the same task.
    """

    job: str
    index: int
    address: str
    incarnation: str

    def __str__(self) -> str:
        return f"{self.job} {self.index} ({self.address})"

    @property
    def order(self) -> tuple[bool, int]:
        """Where it stands among the others: a chief first, then by the index."""
        return self.job != "chief", self.index

    @property
    def task(self) -> Task:
        """Its task."""
        return Task(self.job, self.index)

    @classmethod
    def from_json(cls, data: Any) -> Member:
        """Returns the member that was written as plain data.

        Raises:
            RendezvousError: If something else was.
        """
        match data:
            case {
                "job": str(job),
                "index": int(index),
                "address": str(address),
                "incarnation": str(incarnation),
            }:
                return cls(job, index, address, incarnation)
        raise _not_understood(data)


@dataclass(frozen=True, slots=True)
class Generation:
    """Who trains together, until somebody is lost or comes.

    Attributes:
        number: One more than that of the generation before.
        decided_by: The incarnation of who decided on it: with the number it tells generations apart.
        members: In the order of their ranks.
        meeting: Where they meet.
    """

    number: int
    decided_by: str
    members: tuple[Member, ...]
    meeting: str

    @property
    def identity(self) -> tuple[int, str]:
        """Equal for the same generation."""
        return self.number, self.decided_by

    def rank_of(self, incarnation: str) -> int | None:
        """Returns the rank of a process, or ``None`` if it is not a member."""
        for rank, member in enumerate(self.members):
            if member.incarnation == incarnation:
                return rank
        return None

    def to_json(self) -> dict[str, Any]:
        """Returns the generation as plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Any) -> Generation:
        """Returns the generation that was written as plain data.

        Raises:
            RendezvousError: If something else was.
        """
        match data:
            case {
                "number": int(number),
                "decided_by": str(decided_by),
                "members": [*members],
                "meeting": str(meeting),
            }:
                return cls(number, decided_by, tuple(map(Member.from_json, members)), meeting)
        raise _not_understood(data)


def in_order(members: Iterable[Member]) -> tuple[Member, ...]:
    """Returns members by their tasks: the order of the ranks."""
    return tuple(sorted(members, key=lambda member: member.order))


def _not_understood(data: Any) -> RendezvousError:
    return RendezvousError(
        "All workers must run the same version of stratagem, but one said what was not understood: "
        f"{str(data)[:_SHOWN_CHARACTERS]}."
    )
