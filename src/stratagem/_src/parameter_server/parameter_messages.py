"""The messages between a client and a parameter server.

Reads and ordinary updates are encoded as text, one line each, so a server handles them without
unpickling. Only functions (optimizers, row initializers, ``extended.update``) are pickled; they are sent
once, then referred to by the digest of the pickle.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from stratagem._src.parameter_server.server.stored_array import Array, RowSelection
from stratagem._src.transport.message import Message

__all__ = [
    "ReadRequest",
    "UpdateRequest",
    "decode_fields",
    "decode_reads",
    "decode_updates",
    "encode_fields",
    "encode_reads",
    "encode_updates",
]


_NUMBERED = "rows"


class ReadRequest(NamedTuple):
    """A variable or shard to read.

    Attributes:
        variable: Its id on the server.
        server: Index of the server that holds it.
        rows: The rows to read; ``None`` for all.
        nbytes: Approximate size of the reply.
    """

    variable: str
    server: int
    rows: RowSelection = None
    nbytes: int = 0


class UpdateRequest(NamedTuple):
    """An update of a variable or shard.

    Attributes:
        variable: Its id on the server.
        server: Index of the server that holds it.
        update: The update's name.
        operands: Its operands.
        body: A pickled ``ServerFunction`` for updates that are not methods of ``Variable``.
    """

    variable: str
    server: int
    update: str
    operands: tuple[Array, ...]
    body: bytes = b""


def encode_fields(arrays: Sequence[Array] = (), **fields: Any) -> Message:
    """Returns a message with named JSON fields, and arrays."""
    return Message(json.dumps(fields).encode(), tuple(arrays))


def decode_fields(message: Message) -> dict[str, Any]:
    """Returns the named fields of a message."""
    fields: dict[str, Any] = json.loads(message.body)
    return fields


def encode_reads(reads: Iterable[ReadRequest]) -> Message:
    """Returns the message that requests ``reads``."""
    lines: list[str] = []
    arrays: list[Array] = []
    for variable, _, rows, _ in reads:
        if rows is None:
            lines.append(variable)
        elif isinstance(rows, range):
            lines.append(f"{variable} {rows.start} {rows.stop} {rows.step}")
        else:
            lines.append(f"{variable} {_NUMBERED}")
            arrays.append(rows)
    return Message("\n".join(lines).encode(), tuple(arrays))


def decode_reads(message: Message) -> Iterator[tuple[str, RowSelection]]:
    """Yields the id and the rows of each read."""
    arrays = iter(message.arrays)
    for line in message.body.decode().splitlines():
        variable, *rows = line.split(" ")
        if not rows:
            yield variable, None
        elif rows == [_NUMBERED]:
            yield variable, next(arrays)
        else:
            yield variable, range(*map(int, rows))


def encode_updates(groups: Iterable[Iterable[tuple[UpdateRequest, str]]]) -> Message:
    """Returns the message for updates, each with the digest of its function or ``""``.

    A line per update: variable, update, number of operands, digest. A blank line ends a group.

    Args:
        groups: Groups of updates; each succeeds or fails independently of the others.
    """
    paragraphs: list[str] = []
    arrays: list[Array] = []
    for group in groups:
        lines: list[str] = []
        for (variable, _, update, operands, _), digest in group:
            lines.append(f"{variable} {update} {len(operands)} {digest}")
            arrays.extend(operands)
        paragraphs.append("\n".join(lines))
    return Message("\n\n".join(paragraphs).encode(), tuple(arrays))


def decode_updates(message: Message) -> list[list[tuple[str, str, tuple[Array, ...], str]]]:
    """Returns the id, the update's name, the operands and the function's digest of each update."""
    first = 0
    groups = []
    for paragraph in message.body.decode().split("\n\n"):
        group = []
        for line in paragraph.splitlines():
            variable, update, count, digest = line.split(" ")
            last = first + int(count)
            group.append((variable, update, message.arrays[first:last], digest))
            first = last
        groups.append(group)
    return groups
