"""What a client and a parameter server say to each other.

The bodies of reads and ordinary updates are JSON, so a server carries them out without unpickling
anything. Only functions (optimizers, row initializers, ``extended.update``) travel pickled; they are sent
once, then referred to by the digest of the pickle.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from stratagem.cluster.transport.message import Message
from stratagem.parameter_server.stored_array import Array, RowSelection

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


class ReadRequest(NamedTuple):
    """A variable or shard to read.

    Attributes:
        variable: Its id on the server.
        server: Which server holds it.
        rows: The rows to read; ``None`` for all.
        nbytes: How much the answer is, about.
    """

    variable: str
    server: int
    rows: RowSelection = None
    nbytes: int = 0


class UpdateRequest(NamedTuple):
    """An update of a variable or shard.

    Attributes:
        variable: Its id on the server.
        server: Which server holds it.
        update: The update's name.
        operands: The arrays it takes.
        body: A pickled ``ServerFunction`` for updates that are not methods of ``Variable``.
    """

    variable: str
    server: int
    update: str
    operands: tuple[Array, ...]
    body: bytes = b""


def encode_fields(arrays: Sequence[Array] = (), **fields: Any) -> Message:
    """Returns a message of named values."""
    return Message(json.dumps(fields).encode(), tuple(arrays))


def decode_fields(message: Message) -> dict[str, Any]:
    """Returns the named values of a message."""
    fields: dict[str, Any] = json.loads(message.body)
    return fields


def encode_reads(reads: Iterable[ReadRequest]) -> Message:
    """Returns the message that asks for ``reads``."""
    entries: list[tuple[str, Any]] = []
    arrays: list[Array] = []
    for read in reads:
        if isinstance(read.rows, np.ndarray):
            entries.append((read.variable, "numbered"))
            arrays.append(read.rows)
        elif isinstance(read.rows, range):
            chosen = read.rows
            entries.append((read.variable, (chosen.start, chosen.stop, chosen.step)))
        else:
            entries.append((read.variable, None))
    return Message(json.dumps(entries).encode(), tuple(arrays))


def decode_reads(message: Message) -> Iterator[tuple[str, RowSelection]]:
    """Yields the id and the rows of each read."""
    arrays = iter(message.arrays)
    for variable, rows in json.loads(message.body):
        if rows == "numbered":
            yield variable, next(arrays)
        else:
            yield variable, None if rows is None else range(*rows)


def encode_updates(updates: Iterable[tuple[UpdateRequest, str]]) -> Message:
    """Returns the message for updates, each with the digest of its function or ``""``."""
    entries: list[tuple[str, str, int, str]] = []
    arrays: list[Array] = []
    for update, digest in updates:
        entries.append((update.variable, update.update, len(update.operands), digest))
        arrays.extend(update.operands)
    return Message(json.dumps(entries).encode(), tuple(arrays))


def decode_updates(message: Message) -> Iterator[tuple[str, str, tuple[Array, ...], str]]:
    """Yields the id, the update's name, the operands and the function's digest of each update."""
    first = 0
    for variable, update, count, digest in json.loads(message.body):
        yield variable, update, message.arrays[first : first + count], digest
        first += count
