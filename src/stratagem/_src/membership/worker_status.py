"""What a worker says of itself, and what the others know of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from stratagem._src.cluster.errors import RendezvousError

__all__ = [
    "AGREEING",
    "FAILED",
    "IDLE",
    "LEAVING",
    "WAITING",
    "InputIteration",
    "PeerView",
    "WorkerStatus",
]

IDLE, AGREEING, WAITING = "idle", "agreeing", "waiting"
LEAVING, FAILED = "leaving", "failed"
_PHASES = (IDLE, AGREEING, WAITING, LEAVING, FAILED)
_SHOWN_CHARACTERS = 200


class InputIteration(NamedTuple):
    """One iteration over a distributed dataset: the same for all workers."""

    dataset: str
    number: int

    def __str__(self) -> str:
        return f"iteration {self.number} over {self.dataset}"


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
        begins: Iterations over datasets that it has begun, and that have no first step yet.
        main_begins: The one of them that its main thread waits in, if any.
    """

    phase: str = IDLE
    launched: int = 0
    at: str = ""
    culprit: int | None = None
    reason: str = ""
    agreed: int = 0
    awaits: str = ""
    inputs: tuple[str, ...] = ()
    begins: tuple[InputIteration, ...] = ()
    main_begins: InputIteration | None = None

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
                "begins": [*begins],
                "main_begins": [str(), int()] | None as main_begins,
            } if (
                phase in _PHASES
                and all(isinstance(what, str) for what in inputs)
                and all(_is_iteration(begun) for begun in begins)
            ):
                return cls(
                    phase,
                    launched,
                    at,
                    culprit,
                    reason,
                    agreed,
                    awaits,
                    tuple(inputs),
                    tuple(InputIteration(*begun) for begun in begins),
                    None if main_begins is None else InputIteration(*main_begins),
                )
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


def _is_iteration(data: Any) -> bool:
    match data:
        case [str(), int()]:
            return True
    return False
