"""``Closure``: the scheduling state of one scheduled function call."""

from __future__ import annotations

import enum
import weakref
from collections.abc import Sequence
from typing import Any

__all__ = ["Closure", "Status"]


class Status(enum.Enum):
    """The state of a closure."""

    WAITING = "waits for results that it needs"
    QUEUED = "queued"
    IN_FLIGHT = "assigned to a worker"
    SUCCEEDED = "succeeded, and its result is here"
    HELD = "succeeded, and a worker holds its result"
    LOST = "succeeded, but the worker that held its result is lost"
    FAILED = "failed or cancelled"


class Closure:
    """One scheduled call.

    Args:
        number: Its sequence number; lower numbers run first.
        spec: Its ``ClosureSpec``; opaque to the scheduling rules.
        needs: The closures whose results are arguments of this one.
        workers: The workers that may run it, or ``None`` for any.
        priority: Closures with a higher priority run first.
    """

    __slots__ = (
        "__weakref__",
        "_kept",
        "_released_needs",
        "cancelled_with",
        "error",
        "losses",
        "needs",
        "number",
        "owner",
        "priority",
        "scheduled_at",
        "spec",
        "status",
        "unmet",
        "waiters",
        "where",
        "workers",
    )

    def __init__(
        self,
        number: int,
        spec: Any = None,
        needs: Sequence[Closure] = (),
        workers: frozenset[int] | None = None,
        priority: float = 0,
    ) -> None:
        self.number: int = number
        self.spec: Any = spec
        self.needs: tuple[Closure, ...] = tuple(needs)
        self.workers: frozenset[int] | None = workers
        self.priority: float = priority
        self.status: Status = Status.WAITING
        self.where: int | None = None
        """The worker that runs it or holds its result."""
        self.error: BaseException | None = None
        self.cancelled_with: BaseException | None = None
        """What it fails with if it has to run (again)."""
        self.losses: int = 0
        """Number of workers that were lost while they had it."""
        self.unmet: int = 0
        self.waiters: list[Closure] = []
        self.owner: weakref.ref[Any] | None = None
        """Weak reference to the ``RemoteValue``; once it is dead, the result is unreachable."""
        self.scheduled_at: float = 0.0
        """Time on the monotonic clock, for latency metrics only."""
        self._kept: tuple[Any, ...] = ()
        self._released_needs: tuple[weakref.ref[Closure], ...] = ()

    @property
    def order(self) -> tuple[float, int]:
        """Sort key: the order in which closures start."""
        return (-self.priority, self.number)

    @property
    def settled(self) -> bool:
        """Whether the outcome is known."""
        return self.status not in (Status.WAITING, Status.QUEUED, Status.IN_FLIGHT)

    def release_needs(self) -> None:
        """Drops the strong references to its inputs, so a result does not keep a chain of inputs alive."""
        self._released_needs = tuple(map(weakref.ref, self.needs))
        self.needs, self._kept = (), ()

    def released_needs(self) -> list[Closure] | None:
        """Returns the inputs after ``release_needs``; ``None`` if one was garbage-collected since."""
        needs = [reference() for reference in self._released_needs]
        alive = [need for need in needs if need is not None and need.is_owned]
        return alive if len(alive) == len(needs) else None

    def reacquire_needs(self) -> None:
        """Restores the strong references to its inputs; all of them must still be alive. Idempotent."""
        if self.needs:
            return
        needs = self.released_needs()
        assert needs is not None
        self._kept = tuple(need.owner() for need in needs if need.owner is not None)
        self.needs, self._released_needs = tuple(needs), ()

    @property
    def is_owned(self) -> bool:
        """Whether the result is still reachable."""
        return self.owner is None or self.owner() is not None

    def __repr__(self) -> str:
        return f"<closure {self.number} {self.status.name}>"
