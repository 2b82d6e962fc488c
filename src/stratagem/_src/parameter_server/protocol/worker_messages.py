"""The messages between coordinator and worker.

A coordinator sends ``hello`` and gets a session. From then on it polls: a request carries definitions and
closures to the worker, the reply carries reports back. A request may wait a little for the first report
(long polling). ``value`` returns a result that the worker holds, to the coordinator or to another worker.
"""

from __future__ import annotations

import pickle
from typing import Any, NamedTuple

import numpy as np

from stratagem._src.core.types import Picklable
from stratagem._src.parameter_server.protocol.serialization import Payload
from stratagem._src.transport import Identity, Message

__all__ = [
    "BYE",
    "HELLO",
    "MAX_POLL_WAIT_SECONDS",
    "POLL",
    "VALUE",
    "ClosureCall",
    "Define",
    "Failed",
    "Held",
    "Hello",
    "InlineValue",
    "NotStarted",
    "PollRequest",
    "Report",
    "Resource",
    "Returned",
    "ValueAt",
    "decode",
    "encode",
    "payload_from_message",
    "payload_to_message",
]

HELLO, POLL, VALUE, BYE = "worker.hello", "worker.exchange", "worker.value", "worker.bye"
MAX_POLL_WAIT_SECONDS = 1.0


class Hello(NamedTuple):
    """A coordinator opens a session.

    Args:
        coordinator: Its id; a later hello with the same id ends the earlier session.
        strategy: The pickled strategy, whose scope closures run in.
        num_threads: Number of closures to run concurrently.
        owner: The coordinator's id on the parameter servers.
        replaces: The id of the coordinator that it took over from, whose sessions end; may be empty.
    """

    coordinator: str
    strategy: Payload
    num_threads: int
    owner: str
    replaces: str


class Resource(NamedTuple):
    """A reference to an object that the worker created from a definition."""

    definition: int


class InlineValue(NamedTuple):
    """A value that is sent with the closure."""

    payload: Payload


class ValueAt(NamedTuple):
    """A reference to a result that a worker holds: this worker, or another one to fetch it from."""

    closure: int
    session: str
    address: str
    task: Identity


class Define(NamedTuple):
    """A definition that closures refer to; sent once per session, instantiated on first use.

    Args:
        number: Its number.
        kind: ``"function"``, ``"dataset"``, ``"iterator"`` or ``"variable"``.
        payload: The pickled content.
        references: The definitions that the payload refers to.
    """

    number: int
    kind: str
    payload: Payload
    references: tuple[Resource, ...]


class ClosureCall(NamedTuple):
    """A closure to run: a function, and its pickled arguments."""

    closure: int
    function: int
    arguments: Payload
    references: tuple[Resource | InlineValue | ValueAt, ...]


class PollRequest(NamedTuple):
    """A coordinator's request: new work for the worker, and a poll for reports.

    Args:
        session: The session.
        definitions: New definitions.
        calls: The closures to run.
        forgotten: Definitions that are no longer referenced.
        released: Results that are no longer referenced.
        recall: Whether the worker returns closures that have not started.
        wait: Maximum number of seconds to wait for a report.
    """

    session: str
    definitions: list[Define]
    calls: list[ClosureCall]
    forgotten: list[int]
    released: list[int]
    recall: bool
    wait: float


class Returned(NamedTuple):
    """A closure returned a small result, which is in the report."""

    closure: int
    seconds: float
    payload: Payload


class Held(NamedTuple):
    """A closure returned a large result, which the worker holds."""

    closure: int
    seconds: float


class Failed(NamedTuple):
    """A closure raised an exception."""

    closure: int
    error: bytes


class NotStarted(NamedTuple):
    """A closure did not start: it was recalled, or an input is lost.

    Args:
        closure: Its number.
        missing: The closure whose result is lost, or ``None``.
    """

    closure: int
    missing: int | None


Report = Returned | Held | Failed | NotStarted


def encode(content: Picklable) -> Message:
    """Returns a message with pickled content; arrays are sent out of band."""
    arrays: list[Any] = []

    def take(buffer: pickle.PickleBuffer) -> None:
        arrays.append(np.frombuffer(buffer.raw(), np.uint8))

    body = pickle.dumps(content, protocol=5, buffer_callback=take)
    return Message(body, tuple(arrays))


def decode(message: Message) -> Any:
    """Returns the content of a message. The peer must be authenticated: this unpickles."""
    return pickle.loads(message.body, buffers=message.arrays)


def payload_to_message(payload: Payload) -> Message:
    """Returns the message that carries a payload without references."""
    return Message(payload.data, payload.buffers)


def payload_from_message(message: Message) -> Payload:
    """Returns the payload that a message carries."""
    return Payload(message.body, message.arrays)
