"""What a worker says of itself, and what the others know of it."""

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
        meets: The optional meeting that it waits in, if any.
        heard: Of workers that have asked how the others are, the numbers of their last questions that this
            status answers.
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
        """Returns the number of the last question of a worker that this answers; 0 if it never asked."""
        return dict(self.heard).get(worker, 0)

    def to_json(self) -> dict[str, Any]:
        """Returns the status as plain data, without what is as it is at first."""
        said = ((each, getattr(self, each.name)) for each in fields(self))
        return {each.name: value for each, value in said if value != each.default}

    @classmethod
    def from_json(cls, data: Any) -> WorkerStatus:
        """Returns the status that was written as plain data.

        Raises:
            RendezvousError: If something else was.
        """
        match {**_AT_FIRST, **data} if isinstance(data, dict) else None:
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
                and all(_is_question(asked) for asked in heard)
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
            "All workers must run the same version of stratagem, but one gave a status that was not "
            f"understood: {str(data)[:_SHOWN_CHARACTERS]}."
        )


_AT_FIRST = asdict(WorkerStatus())


@dataclass(frozen=True, slots=True)
class PeerView:
    """What is known of a worker.

    Attributes:
        absent: Whether it has not come yet.
        gone: Whether its connection has ended; without a word, if it had not left.
        left: Why it left, in its own words; ``None`` if it has not.
        silent: Whole seconds since it was last heard of; 0 while they are few.
        status: What it last said of itself.
    """

    absent: bool = True
    gone: bool = False
    left: str | None = None
    silent: int = 0
    status: WorkerStatus = field(default_factory=WorkerStatus)

    @property
    def is_there(self) -> bool:
        """Whether it has come, and has neither left nor gone."""
        return not (self.absent or self.gone or self.left is not None)

    def to_json(self) -> list[Any]:
        """Returns the view as plain data."""
        return [self.absent, self.gone, self.left, self.silent, self.status.to_json()]

    @classmethod
    def from_json(cls, data: list[Any]) -> PeerView:
        """Returns the view that was written as plain data."""
        absent, gone, left, silent, status = data
        return cls(absent, gone, left, silent, WorkerStatus.from_json(status))


def views_to_json(views: Sequence[PeerView]) -> dict[str, Any]:
    """Returns what is known of all workers as plain data: each different view once, and a letter for each.

    Most workers are in one of few places. Then this grows by one byte with each of them.

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


def _is_iteration(data: Any) -> bool:
    match data:
        case [str(), int()]:
            return True
    return False


def _is_question(data: Any) -> bool:
    match data:
        case [int(), int()]:
            return True
    return False
