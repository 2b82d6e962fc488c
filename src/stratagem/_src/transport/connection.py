"""``Connection``: a bidirectional stream of messages between two tasks."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from stratagem._src.process.fork import ProcessOwner
from stratagem._src.transport.bulk_channel import BulkChannel
from stratagem._src.transport.byte_stream import ByteStream
from stratagem._src.transport.identity import Identity
from stratagem._src.transport.message import Message
from stratagem._src.transport.records import WireRecordReader, WireRecordWriter
from stratagem._src.transport.wire_format import HEAD_BYTES, encode, parse_head, parse_layout

__all__ = ["Connection"]

_ALIGNMENT = 64


class Connection:
    """One end of a connection.

    Both ends may send at any time. Any thread may send while one receives.

    Deadlines are times on the monotonic clock. Without a deadline the wait for a message to begin is
    unlimited, but a message that has begun must make progress within a minute, and one that is sent must be
    taken within a minute plus the time that its bytes take at 1 Mbit/s. An error in the middle of a message
    ends the connection.

    Args:
        stream: The byte stream. The connection closes it.

    Attributes:
        peer: The identity of the other end; known after the handshake.
    """

    def __init__(self, stream: ByteStream) -> None:
        self.peer: Identity | None = None
        self._stream = stream
        self._writer = WireRecordWriter(stream)
        self._reader = WireRecordReader(stream)
        self._owner = ProcessOwner("a connection")
        self._sending = threading.Lock()
        self._receiving = threading.Lock()

    @property
    def peer_certificate(self) -> bytes | None:
        """The peer's TLS certificate, if the connection uses TLS."""
        return self._stream.peer_certificate

    @property
    def own_host(self) -> str:
        """The local address of the connection."""
        return self._stream.own_host

    @property
    def peer_host(self) -> str:
        """The remote address of the connection."""
        return self._stream.peer_host

    @property
    def unacknowledged_seconds(self) -> float:
        """Seconds for which the peer's host has not acknowledged data that is due; 0 if unknown."""
        return self._stream.unacknowledged_seconds

    def set_user_timeout(self, seconds: float) -> None:
        """Ends the connection when sent data stays unacknowledged for ``seconds`` (TCP_USER_TIMEOUT)."""
        self._stream.set_user_timeout(seconds)

    @property
    def has_room(self) -> bool:
        """Whether a small message can be sent without blocking."""
        return self._stream.has_room

    def protect(self, sending_key: bytes, receiving_key: bytes) -> None:
        """Encrypts all data sent from now on, and decrypts all data received."""
        self._writer.protect(sending_key)
        self._reader.protect(receiving_key)

    def stop_encrypting(self) -> None:
        """Switches both directions to plaintext; both ends call it. TLS is not affected."""
        self._writer.protect(None)
        self._reader.protect(None)

    def send(self, kind: int, method: str, message: Message, deadline: float | None) -> None:
        """Sends a message.

        Args:
            kind: One of ``Kind``.
            method: The name of the method; empty in responses.
            message: The message.
            deadline: When to give up; ``None`` for that of the class.

        Raises:
            InvalidArgumentError: If it has an array that cannot be sent. Nothing is sent then.
            TimeoutError: If the deadline passes.
            OSError: If the connection breaks.
        """
        # Before the lock: in a forked child it may be held forever by a thread that only the parent has.
        self._owner.check()
        pieces = encode(kind, method, message)
        with self._sending:
            try:
                self._writer.write(pieces, deadline)
            except BaseException:
                self.interrupt()
                raise

    def receive(self, deadline: float | None) -> tuple[int, str, Message]:
        """Waits for a message; returns its kind, its method and the message.

        Raises:
            TimeoutError: If the deadline passes. If no message had begun, the caller may try again.
            PeerDisconnectedError: If the peer closes the connection.
            TamperedError: If the data was modified in transit.
            OSError: If the connection breaks.
            ValueError: If the peer runs another version.
        """
        self._owner.check()
        with self._receiving:
            self._reader.wait(deadline)
            try:
                return self._receive_message(deadline)
            except BaseException:
                self.interrupt()
                raise

    def _receive_message(self, deadline: float | None) -> tuple[int, str, Message]:
        text = self._reader.read(deadline)
        head = parse_head(text)
        if head.end > len(text):
            text = self._read_rest(text, head.end, deadline)
        method = text[HEAD_BYTES : head.layout_start].decode()
        body = text[head.body_start : head.end]
        if head.layout_bytes == 0:
            return head.kind, method, Message(body)
        layout = parse_layout(text[head.layout_start : head.body_start])
        buffer = _aligned_buffer(layout.num_bytes)
        # The first record may contain small arrays after the body.
        view, early = buffer.data, text[head.end :]
        view[: len(early)] = early
        self._reader.read_into(view[len(early) :], deadline)
        return head.kind, method, Message(body, layout.views(buffer))

    def as_bulk(self) -> BulkChannel:
        """Converts the connection to a channel for raw arrays, with the same encryption.

        The connection carries no messages from now on.
        """
        self._owner.check()
        assert self._reader.is_empty, "a message was sent to a connection for arrays"
        return BulkChannel(self._stream, self._writer.cipher, self._reader.cipher)

    def send_bytes(self, data: bytes, deadline: float) -> None:
        """Sends bytes without framing or encryption. For the handshake."""
        sent = 0
        while sent < len(data):
            sent += self._stream.send([data[sent:]], deadline)

    def receive_bytes(self, num_bytes: int, deadline: float) -> bytes:
        """Receives exactly ``num_bytes`` bytes without framing or encryption. For the handshake."""
        data = memoryview(bytearray(num_bytes))
        filled = 0
        while filled < num_bytes:
            filled += self._stream.receive_into(data[filled:], deadline)
        return bytes(data)

    def is_idle(self) -> bool:
        """Returns whether the peer is connected and has sent nothing, as is required between two calls."""
        return self._reader.is_empty and self._stream.is_idle()

    def interrupt(self) -> None:
        """Makes pending operations fail, in any thread."""
        self._stream.interrupt()

    def close(self) -> None:
        """Closes the connection; pending operations fail."""
        if not self._owner.is_here:  # the fork handler has closed it in this child
            return
        self.interrupt()
        with self._sending, self._receiving:
            self._stream.close()

    def _read_rest(self, begun: bytes, num_bytes: int, deadline: float | None) -> bytes:
        # np.empty does not touch its pages, so a large announced size takes no memory before data arrives.
        text = np.empty(num_bytes, np.uint8)
        text.data[: len(begun)] = begun
        self._reader.read_into(text.data[len(begun) :], deadline)
        return text.tobytes()


def _aligned_buffer(num_bytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    buffer = np.empty(num_bytes + _ALIGNMENT, np.uint8)
    start = -buffer.ctypes.data % _ALIGNMENT
    return buffer[start : start + num_bytes]
