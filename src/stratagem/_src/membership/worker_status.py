"""What a worker says of itself, and what the others know of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from stratagem._src.cluster.errors import RendezvousError

__all__ = ["AGREEING", "FAILED", "IDLE", "LEAVING", "WAITING", "PeerView", "WorkerStatus"]

IDLE, AGREEING, WAITING = "idle", "agreeing", "waiting"
LEAVING, FAILED = "leaving", "failed"
_PHASES = (IDLE, AGREEING, WAITING, LEAVING, FAILED)
_SHOWN_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """Where a worker stands in the common sequence of programs.

    Attributes:
        phase: ``IDLE`` (in its own code), ``AGREEING`` (before a program or an exchange), ``WAITING``
            (in a program), ``LEAVING`` (at the end of its own), ``FAILED`` (gave up).
        launched: How many common programs it has launched.
        at: What it does, or did last.
        culprit: The worker it gave up on; ``None`` if the programs differ.
        reason: Why it gave up.
        agreed: How many exchanges of the common sequence it has completed.
        awaits: Which exchange of the common sequence it is in, if any.
        inputs: What it waits for beside the sequence, for input.
    """

    phase: str = IDLE
    launched: int = 0
    at: str = ""
    culprit: int | None = None
    reason: str = ""
    agreed: int = 0
    awaits: str = ""
    inputs: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Returns the status as plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Any) -> WorkerStatus:
        """Returns the status that was written as plain data.

        Raises:
            RendezvousError: If something else was.
        """
        match data:
            case {
                "phase": str(phase),
                "launched": int(launched),
                "at": str(at),
                "culprit": int() | None as culprit,
                "reason": str(reason),
                "agreed": int(agreed),
                "awaits": str(awaits),
                "inputs": [*inputs],
            } if phase in _PHASES and all(isinstance(what, str) for what in inputs):
                return cls(phase, launched, at, culprit, reason, agreed, awaits, tuple(inputs))
        raise RendezvousError(
            "All workers must run the same version of stratagem, but one gave a status that was not "
            f"understood: {str(data)[:_SHOWN_CHARACTERS]}."
        )


@dataclass(frozen=True, slots=True)
class PeerView:
    """What is known of a worker.

    Attributes:
        absent: Whether it has not come yet.
        gone: Whether its connection has ended; without a word, if it had not left.
        left: Why it left, in its own words; ``None`` if it has not.
        silent: Seconds since it was last heard of.
        status: What it last said of itself.
    """

    absent: bool = True
    gone: bool = False
    left: str | None = None
    silent: float = 0.0
    status: WorkerStatus = field(default_factory=WorkerStatus)

    def to_json(self) -> dict[str, Any]:
        """Returns the view as plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> PeerView:
        """Returns the view that was written as plain data."""
        return cls(**{**data, "status": WorkerStatus.from_json(data["status"])})
