"""``Closure``: one scheduled call of a function, as the scheduling rules see it."""

from __future__ import annotations

import enum
import weakref
from collections.abc import Sequence
from typing import Any

__all__ = ["Closure", "Status"]


class Status(enum.Enum):
    """Where a closure stands."""

    WAITING = "waits for results that it needs"
    QUEUED = "queued"
    IN_FLIGHT = "given to a worker"
    SUCCEEDED = "succeeded, and its result is here"
    HELD = "succeeded, and a worker holds its result"
    LOST = "succeeded, but the worker that held its result is gone"
    FAILED = "failed or cancelled"


class Closure:
    """One scheduled call.

    Args:
        number: Counts the closures; earlier ones go first.
        payload: What to send to a worker; the rules do not look at it.
        needs: The closures whose results are arguments of this one.
        workers: The only workers that may run it, or ``None`` for any.
        priority: Closures with a higher one go first.
    """

    __slots__ = (
        "__weakref__",
        "_kept",
        "_needed_before",
        "error",
        "losses",
        "needs",
        "number",
        "owner",
        "payload",
        "priority",
        "scheduled_at",
        "status",
        "unmet",
        "waiters",
        "where",
        "workers",
    )

    def __init__(
        self,
        number: int,
        payload: Any = None,
        needs: Sequence[Closure] = (),
        workers: frozenset[int] | None = None,
        priority: float = 0,
    ) -> None:
        self.number: int = number
        self.payload: Any = payload
        self.needs: tuple[Closure, ...] = tuple(needs)
        self.workers: frozenset[int] | None = workers
        self.priority: float = priority
        self.status: Status = Status.WAITING
        self.where: int | None = None
        """The worker that runs it or holds its result."""
        self.error: BaseException | None = None
        self.losses: int = 0
        """How many workers were lost that had it."""
        self.unmet: int = 0
        self.waiters: list[Closure] = []
        self.owner: weakref.ref[Any] | None = None
        """Without whom nobody has the result, if there is one."""
        self.scheduled_at: float = 0.0
        """When, on the monotonic clock; the rules do not look at it."""
        self._kept: tuple[Any, ...] = ()
        self._needed_before: tuple[weakref.ref[Closure], ...] = ()

    @property
    def order(self) -> tuple[float, int]:
        """Sorts closures in the order in which they are to start."""
        return (-self.priority, self.number)

    @property
    def settled(self) -> bool:
        """Whether the outcome is known."""
        return self.status not in (Status.WAITING, Status.QUEUED, Status.IN_FLIGHT)

    def let_needs_go(self) -> None:
        """Keeps the results that it needed no longer, so that a chain of results is not kept by its end."""
        self._needed_before = tuple(map(weakref.ref, self.needs))
        self.needs, self._kept = (), ()

    def needed_before(self) -> list[Closure] | None:
        """Returns what it needed before it let go; ``None`` if one of these results has gone since."""
        needed = [reference() for reference in self._needed_before]
        there = [each for each in needed if each is not None and each.is_owned]
        return there if len(there) == len(needed) else None

    def take_needs_back(self) -> None:
        """Keeps again what it let go; all of it must still be there."""
        needs = self.needed_before()
        assert needs is not None
        self.needs, self._needed_before = tuple(needs), ()
        self._kept = tuple(need.owner() for need in needs if need.owner is not None)

    @property
    def is_owned(self) -> bool:
        """Whether somebody can still ask for the result."""
        return self.owner is None or self.owner() is not None

    def __repr__(self) -> str:
        return f"<closure {self.number} {self.status.name}>"
