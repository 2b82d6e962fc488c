"""What a coordinator and a worker tell each other.

A coordinator says ``hello`` and gets a session. From then on it exchanges: definitions and closures go
there, reports come back. An exchange may wait a little for the first report. ``value`` gives a result
that the worker holds to the coordinator, or to another worker.
"""

from __future__ import annotations

import pickle
from typing import Any, NamedTuple

import numpy as np

from stratagem._src.parameter_server.protocol.shipping import Parcel
from stratagem._src.transport import Identity, Message

__all__ = [
    "BYE",
    "EXCHANGE",
    "HELLO",
    "LONGEST_WAIT_SECONDS",
    "VALUE",
    "ClosureCall",
    "Define",
    "Exchange",
    "Failed",
    "Held",
    "Hello",
    "InlineValue",
    "NotStarted",
    "Report",
    "Resource",
    "Returned",
    "ValueAt",
    "read",
    "read_parcel",
    "written",
    "written_parcel",
]

HELLO, EXCHANGE, VALUE, BYE = "worker.hello", "worker.exchange", "worker.value", "worker.bye"
LONGEST_WAIT_SECONDS = 1.0


class Hello(NamedTuple):
    """A coordinator presents itself.

    Args:
        coordinator: Its id; a later hello with the same id ends the earlier session.
        strategy: The pickled strategy, current in everything that runs.
        num_threads: How many closures run at the same time.
        owner: What the parameter servers call it.
        replaces: What they called the one that it took over from, whose sessions end; empty if it did not.
    """

    coordinator: str
    strategy: Parcel
    num_threads: int
    owner: str
    replaces: str


class Resource(NamedTuple):
    """Stands for something that the worker made itself, by its definition."""

    definition: int


class InlineValue(NamedTuple):
    """Stands for a value that travels along."""

    parcel: Parcel


class ValueAt(NamedTuple):
    """Stands for a result that a worker holds: this one, or another one that has to be asked."""

    closure: int
    session: str
    address: str
    task: Identity


class Define(NamedTuple):
    """Something that closures refer to, sent once in a session and made when it is first used.

    Args:
        number: Its number.
        kind: ``"function"``, ``"dataset"``, ``"iterator"`` or ``"variable"``.
        parcel: What it is made of.
        references: What the parcel refers to.
    """

    number: int
    kind: str
    parcel: Parcel
    references: tuple[Resource, ...]


class ClosureCall(NamedTuple):
    """A closure to run: a function, and the parcel of its arguments."""

    closure: int
    function: int
    arguments: Parcel
    references: tuple[Resource | InlineValue | ValueAt, ...]


class Exchange(NamedTuple):
    """What a coordinator sends.

    Args:
        session: Which session it is about.
        definitions: What is new.
        calls: The closures to run.
        forgotten: Definitions that nothing refers to any more.
        released: Results that nobody can ask for any more.
        recall: Whether closures that have not started are to be given back.
        wait: How many seconds to wait for a report if there is none.
    """

    session: str
    definitions: list[Define]
    calls: list[ClosureCall]
    forgotten: list[int]
    released: list[int]
    recall: bool
    wait: float


class Returned(NamedTuple):
    """A closure has returned, with a small result."""

    closure: int
    seconds: float
    parcel: Parcel


class Held(NamedTuple):
    """A closure has returned, and the worker holds the result."""

    closure: int
    seconds: float


class Failed(NamedTuple):
    """A closure has raised."""

    closure: int
    error: bytes


class NotStarted(NamedTuple):
    """A closure did not start: it was recalled, or a result that it needs is nowhere to be had.

    Args:
        closure: Its number.
        missing: The closure whose result is lost, or ``None``.
    """

    closure: int
    missing: int | None


Report = Returned | Held | Failed | NotStarted


def written(content: Any) -> Message:
    """Returns a message of some content; the memory of large arrays goes beside it."""
    arrays: list[Any] = []

    def take(buffer: pickle.PickleBuffer) -> None:
        arrays.append(np.frombuffer(buffer.raw(), np.uint8))

    body = pickle.dumps(content, protocol=5, buffer_callback=take)
    return Message(body, tuple(arrays))


def read(message: Message) -> Any:
    """Returns the content of a message. The peer must have proved who it is."""
    return pickle.loads(message.body, buffers=message.arrays)


def written_parcel(parcel: Parcel) -> Message:
    """Returns a message of a parcel without references."""
    return Message(parcel.data, parcel.buffers)


def read_parcel(message: Message) -> Parcel:
    """Returns the parcel of a message."""
    return Parcel(message.body, message.arrays)
