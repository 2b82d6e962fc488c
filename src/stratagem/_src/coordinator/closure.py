"""``Closure``: one scheduled call of a function, as the scheduling rules see it."""

from __future__ import annotations

import enum
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
        "error",
        "losses",
        "needs",
        "number",
        "payload",
        "priority",
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

    @property
    def order(self) -> tuple[float, int]:
        """Sorts closures in the order in which they are to start."""
        return (-self.priority, self.number)

    @property
    def settled(self) -> bool:
        """Whether the outcome is known."""
        return self.status not in (Status.WAITING, Status.QUEUED, Status.IN_FLIGHT)

    @property
    def can_run_again(self) -> bool:
        """Whether a lost result can be computed again: the arguments must still be there."""
        return not self.needs

    def __repr__(self) -> str:
        return f"<closure {self.number} {self.status.name}>"
