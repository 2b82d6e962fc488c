"""``Generation``: the workers of an elastic job between two re-formations."""

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
    """Returns a random id that tells this process from an earlier one with the same task."""
    return secrets.token_hex(8)


@dataclass(frozen=True, slots=True)
class Member:
    """One process of an elastic job.

    Attributes:
        job: The job of its task.
        index: The index of its task.
        address: Where its ``PeerService`` listens.
        incarnation: Tells it from other processes that have or had the same task.
    """

    job: str
    index: int
    address: str
    incarnation: str

    def __str__(self) -> str:
        return f"{self.job} {self.index} ({self.address})"

    @property
    def order(self) -> tuple[bool, int]:
        """The sort key of ranks: the chief first, then by index."""
        return self.job != "chief", self.index

    @property
    def task(self) -> Task:
        """Its task."""
        return Task(self.job, self.index)

    @classmethod
    def from_json(cls, data: Any) -> Member:
        """Returns the member that ``dataclasses.asdict`` serialized.

        Raises:
            RendezvousError: If the data is not a member.
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
    """The workers that train together, until one is lost or another joins.

    Attributes:
        number: The number of the previous generation plus one.
        decided_by: The incarnation of the leader that decided on it. With the number it identifies the
            generation.
        members: The members in rank order.
        server: The address of the membership server.
    """

    number: int
    decided_by: str
    members: tuple[Member, ...]
    server: str

    @property
    def identity(self) -> tuple[int, str]:
        """The number and the decider: equal only for the same generation."""
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
        """Returns the generation that ``to_json`` serialized.

        Raises:
            RendezvousError: If the data is not a generation.
        """
        match data:
            case {
                "number": int(number),
                "decided_by": str(decided_by),
                "members": [*members],
                "server": str(server),
            }:
                return cls(number, decided_by, tuple(map(Member.from_json, members)), server)
        raise _not_understood(data)


def in_order(members: Iterable[Member]) -> tuple[Member, ...]:
    """Returns members in rank order, which is the order of their tasks."""
    return tuple(sorted(members, key=lambda member: member.order))


def _not_understood(data: object) -> RendezvousError:
    return RendezvousError(
        "All workers must run the same version of stratagem, but one sent a message that cannot be parsed: "
        f"{str(data)[:_SHOWN_CHARACTERS]}."
    )
