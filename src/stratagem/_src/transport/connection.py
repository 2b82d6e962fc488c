"""``Connection``: messages between two tasks, in both directions at any time."""

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

    Both ends may send whenever they want. Any thread may send, while one receives.

    Deadlines are times on the monotonic clock. Without one, there is no limit on how long to wait for
    a message to begin, but a message that has begun must not stand still for a minute. An error in the
    middle of a message ends the connection.

    Args:
        stream: The bytes, which the connection closes.

    Attributes:
        peer: Who is at the other end. Only a greeting can tell.
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
        """The certificate by which the other end proved itself, if TLS protects the connection."""
        return self._stream.peer_certificate

    @property
    def own_host(self) -> str:
        """The address of this machine on the way to the other end."""
        return self._stream.own_host

    @property
    def peer_host(self) -> str:
        """The address of the other end."""
        return self._stream.peer_host

    @property
    def unacknowledged_seconds(self) -> float:
        """For how long the other host has acknowledged nothing though it should; 0 if that is unknown."""
        return self._stream.unacknowledged_seconds

    def end_when_unacknowledged(self, seconds: float) -> None:
        """Ends the connection when nothing of what was sent is acknowledged, or taken in, for so long."""
        self._stream.end_when_unacknowledged(seconds)

    @property
    def has_room(self) -> bool:
        """Whether a small message can be sent without waiting for the other end."""
        return self._stream.has_room

    def protect(self, sending_key: bytes, receiving_key: bytes) -> None:
        """Encrypts all that is sent from now on, and takes what comes for encrypted."""
        self._writer.protect(sending_key)
        self._reader.protect(receiving_key)

    def stop_encrypting(self) -> None:
        """Sends and takes all that follows in the clear; both ends call it. TLS is not affected."""
        self._writer.protect(None)
        self._reader.protect(None)

    def send(self, kind: int, method: str, message: Message, deadline: float | None) -> None:
        """Sends a message.

        Args:
            kind: One of ``Kind``.
            method: Which handler it is for; empty in answers.
            message: The message.
            deadline: When to give up.

        Raises:
            InvalidArgumentError: If it has an array that cannot travel. Nothing is sent.
            TimeoutError: If it takes too long.
            OSError: If the connection breaks.
        """
        self._owner.check()  # before the lock, which a thread of the parent may have held for ever
        pieces = encode(kind, method, message)
        with self._sending:
            try:
                self._writer.write(pieces, deadline)
            except BaseException:
                self.interrupt()
                raise

    def receive(self, deadline: float | None) -> tuple[int, str, Message]:
        """Waits for a message and returns its kind, its method and itself.

        Raises:
            TimeoutError: If it takes too long. If no message had begun, one may try again.
            PeerGone: If the other end closes the connection.
            TamperedError: If what comes is not what the other end sent.
            OSError: If the connection breaks.
            ValueError: If the other end is of another version.
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
        view, early = buffer.data, text[head.end :]
        view[: len(early)] = early
        self._reader.read_into(view[len(early) :], deadline)
        return head.kind, method, Message(body, layout.cut(buffer))

    def as_bulk(self) -> BulkChannel:
        """Returns the connection for arrays of one thread. It carries nothing else from now on.

        Encrypted as the connection is.
        """
        self._owner.check()
        assert self._reader.is_empty, "a message was sent to a connection for arrays"
        return BulkChannel(self._stream, self._writer.cipher, self._reader.cipher)

    def send_bytes(self, data: bytes, deadline: float) -> None:
        """Sends bytes as they are."""
        sent = 0
        while sent < len(data):
            sent += self._stream.send([data[sent:]], deadline)

    def receive_bytes(self, num_bytes: int, deadline: float) -> bytes:
        """Waits for so many bytes, takes no more, and returns them."""
        data = memoryview(bytearray(num_bytes))
        filled = 0
        while filled < num_bytes:
            filled += self._stream.receive_into(data[filled:], deadline)
        return bytes(data)

    def is_idle(self) -> bool:
        """Returns whether the other end is there and silent, as it must be between two calls."""
        return self._reader.is_empty and self._stream.is_silent()

    def interrupt(self) -> None:
        """Wakes whoever waits on the connection, on any thread, with an error."""
        self._stream.interrupt()

    def close(self) -> None:
        """Ends the connection; whoever waits on it gets an error."""
        if not self._owner.is_here:  # it is closed there since the fork
            return
        self.interrupt()
        with self._sending, self._receiving:
            self._stream.close()

    def _read_rest(self, begun: bytes, num_bytes: int, deadline: float | None) -> bytes:
        # NumPy does not write to memory until data comes, so whatever was announced takes none.
        whole = np.empty(num_bytes, np.uint8)
        whole.data[: len(begun)] = begun
        self._reader.read_into(whole.data[len(begun) :], deadline)
        return whole.tobytes()


def _aligned_buffer(num_bytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    buffer = np.empty(num_bytes + _ALIGNMENT, np.uint8)
    start = -buffer.ctypes.data % _ALIGNMENT
    return buffer[start : start + num_bytes]
