"""Messages on a stream of bytes: JSON in frames of limited size, sealed with a shared secret."""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
from typing import Any

from stratagem.cluster.errors import RendezvousError

__all__ = [
    "LARGEST_FRAME",
    "LARGEST_GREETING",
    "FrameReader",
    "Seal",
    "frame",
    "next_body",
    "to_json",
]

LARGEST_FRAME = 4 * 1024 * 1024
LARGEST_GREETING = 1024
_LENGTH_BYTES = 4
_CODE_BYTES = 32


def frame(body: bytes) -> bytes:
    """Returns a body with its length in front."""
    return len(body).to_bytes(_LENGTH_BYTES, "big") + body


def to_json(body: bytes) -> dict[str, Any]:
    """Returns the JSON object in a body.

    Raises:
        RendezvousError: If it holds anything else.
    """
    try:
        message = json.loads(body)
    except (ValueError, RecursionError):
        message = None
    if not isinstance(message, dict):
        raise RendezvousError("A message between nodes must be a JSON object, got something else.")
    return message


class FrameReader:
    r"""Cuts a stream of bytes into bodies.

    >>> from stratagem.cluster.launch.frames import FrameReader, frame
    >>> stream = frame(b"one") + frame(b"two")
    >>> reader = FrameReader(limit=1024)
    >>> reader.feed(stream[:9]), reader.feed(stream[9:])
    ([b'one'], [b'two'])

    Attributes:
        limit: The most bytes that a body may have.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._received = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Returns the bodies that the data completes.

        Raises:
            RendezvousError: If a body is announced that is larger than the limit.
        """
        self._received += data
        bodies = []
        while len(self._received) >= _LENGTH_BYTES:
            length = int.from_bytes(self._received[:_LENGTH_BYTES], "big")
            if length > self.limit:
                raise RendezvousError(
                    f"A message between nodes must have at most {self.limit} bytes, got {length}."
                )
            if len(self._received) < _LENGTH_BYTES + length:
                break
            bodies.append(self._received[_LENGTH_BYTES : _LENGTH_BYTES + length])
            self._received = self._received[_LENGTH_BYTES + length :]
        return bodies


def next_body(connection: socket.socket, limit: int) -> bytes:
    """Returns the next body, and leaves what follows it: that belongs to the conversation.

    Raises:
        ConnectionResetError: If the connection ends before.
    """
    reader = FrameReader(limit)
    while True:
        received = connection.recv(1)
        if not received:
            raise ConnectionResetError("the connection was closed")
        bodies = reader.feed(received)
        if bodies:
            return bodies[0]


class Seal:
    """One direction of a conversation, in which nothing can be forged, repeated or left out.

    >>> from stratagem.cluster.launch.frames import FrameReader, Seal
    >>> sender, receiver = Seal(b"key", "to node 1"), Seal(b"key", "to node 1")
    >>> [body] = FrameReader(1024).feed(sender.seal({"hello": 1}))
    >>> receiver.open(body)
    {'hello': 1}
    >>> receiver.open(body)
    Traceback (most recent call last):
    stratagem.cluster.errors.RendezvousError: A message between nodes is not sealed with their secret.

    Args:
        key: What both ends know.
        direction: Who speaks to whom.
    """

    def __init__(self, key: bytes, direction: str) -> None:
        self._key = key
        self._direction = direction.encode()
        self._count = 0

    def seal(self, message: dict[str, Any]) -> bytes:
        """Returns the frame of the next message."""
        body = json.dumps(message).encode()
        return frame(self._code(body) + body)

    def open(self, body: bytes) -> dict[str, Any]:
        """Returns the next message.

        Raises:
            RendezvousError: If the other end does not know the key, or it is not the next message.
        """
        code, body = body[:_CODE_BYTES], body[_CODE_BYTES:]
        if not hmac.compare_digest(code, self._code(body)):
            raise RendezvousError("A message between nodes is not sealed with their secret.")
        return to_json(body)

    def _code(self, body: bytes) -> bytes:
        number = self._count.to_bytes(8, "big")
        self._count += 1
        head = len(self._direction).to_bytes(2, "big") + self._direction + number
        return hmac.new(self._key, head + body, hashlib.sha256).digest()
