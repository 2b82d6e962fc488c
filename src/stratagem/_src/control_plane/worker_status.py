"""The status that a worker sends with its heartbeats, and the view that the others have of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
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
    "views_from_json",
    "views_to_json",
]

IDLE, AGREEING, WAITING = "idle", "agreeing", "waiting"
LEAVING, FAILED = "leaving", "failed"
_PHASES = (IDLE, AGREEING, WAITING, LEAVING, FAILED)
_SHOWN_CHARACTERS = 200


class InputIteration(NamedTuple):
    """One iteration over a distributed dataset; equal on all workers."""

    dataset: str
    number: int

    def __str__(self) -> str:
        return f"iteration {self.number} over {self.dataset}"


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """The position of a worker in the common sequence of programs. The field names are wire keys.

    Attributes:
        phase: ``IDLE`` (in its own code), ``AGREEING`` (in a gather), ``WAITING`` (in a program),
            ``LEAVING`` (at the end of its own program), ``FAILED`` (gave up).
        launched: The number of common programs that it has launched.
        at: What it does, or did last.
        culprit: The rank of the worker it gave up on; ``None`` if the programs differ.
        reason: Why it gave up.
        agreed: The number of gathers of the common sequence that it has completed.
        awaits: The key of the gather of the common sequence that it is in, if any.
        inputs: What it waits for outside the sequence, for input.
        begins: Iterations over datasets that it has begun, and that have no first step yet.
        main_begins: The one of them that its main thread waits in, if any.
        meets: The optional barrier that it waits at, if any.
        heard: The last status request of each worker that this status answers, as pairs of the worker's
            rank and the number of the request.
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
    meets: str = ""
    heard: tuple[tuple[int, int], ...] = ()

    def heard_of(self, worker: int) -> int:
        """Returns the number of a worker's last request that this status answers; 0 if there is none."""
        return dict(self.heard).get(worker, 0)

    def to_json(self) -> dict[str, Any]:
        """Returns the status as plain data, without fields that have their default values."""
        # Sent twice a second by every worker, so defaults are left out: {"phase": "waiting", "launched":
        # 5, "at": "step"}.
        said = ((each, getattr(self, each.name)) for each in fields(self))
        return {each.name: value for each, value in said if value != each.default}

    @classmethod
    def from_json(cls, data: Any) -> WorkerStatus:
        """Returns the status that ``to_json`` serialized.

        Raises:
            RendezvousError: If the data is not a status.
        """
        match {**_DEFAULTS, **data} if isinstance(data, dict) else None:
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
                "meets": str(meets),
                "heard": [*heard],
            } if (
                phase in _PHASES
                and all(isinstance(what, str) for what in inputs)
                and all(_is_iteration(begun) for begun in begins)
                and all(_is_request(asked) for asked in heard)
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
                    meets,
                    tuple((by, number) for by, number in heard),
                )
        raise RendezvousError(
            "All workers must run the same version of stratagem, but one sent a status that cannot be "
            f"parsed: {str(data)[:_SHOWN_CHARACTERS]}."
        )


_DEFAULTS = asdict(WorkerStatus())


@dataclass(frozen=True, slots=True)
class PeerView:
    """The last known state of a worker.

    Attributes:
        absent: Whether it has not joined yet.
        gone: Whether its connection has ended. If ``left`` is ``None``, it ended unexpectedly.
        left: The reason that it gave when it left; ``None`` if it has not.
        heartbeat_age: Whole seconds since its last heartbeat; 0 while they are few.
        status: Its last status.
    """

    absent: bool = True
    gone: bool = False
    left: str | None = None
    heartbeat_age: int = 0
    status: WorkerStatus = field(default_factory=WorkerStatus)

    @property
    def is_there(self) -> bool:
        """Whether it has joined, and has neither left nor disconnected."""
        return not (self.absent or self.gone or self.left is not None)

    def to_json(self) -> list[Any]:
        """Returns the view as plain data."""
        return [self.absent, self.gone, self.left, self.heartbeat_age, self.status.to_json()]

    @classmethod
    def from_json(cls, data: list[Any]) -> PeerView:
        """Returns the view that ``to_json`` serialized."""
        absent, gone, left, heartbeat_age, status = data
        return cls(absent, gone, left, heartbeat_age, WorkerStatus.from_json(status))


def views_to_json(views: Sequence[PeerView]) -> dict[str, Any]:
    """Returns the views of all workers as plain data: each distinct view once, and one letter per worker.

    Usually there are only a few distinct views. Then the size grows by one byte per worker.

    >>> views_to_json([PeerView(), PeerView(absent=False), PeerView()])["of"]
    '010'
    """
    letters = {view: chr(ord("0") + number) for number, view in enumerate(dict.fromkeys(views))}
    return {"kinds": [view.to_json() for view in letters], "of": "".join(letters[v] for v in views)}


def views_from_json(data: dict[str, Any]) -> list[PeerView]:
    """Returns the views that ``views_to_json`` wrote.

    >>> views = [PeerView(), PeerView(absent=False), PeerView()]
    >>> views_from_json(views_to_json(views)) == views
    True
    """
    kinds = [PeerView.from_json(kind) for kind in data["kinds"]]
    return [kinds[ord(letter) - ord("0")] for letter in data["of"]]


def _is_iteration(data: object) -> bool:
    match data:
        case [str(), int()]:
            return True
    return False


def _is_request(data: object) -> bool:
    match data:
        case [int(), int()]:
            return True
    return False
