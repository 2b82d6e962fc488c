"""``Connection``: a socket on which messages go one way, then the other."""

from __future__ import annotations

import contextlib
import socket
import ssl
import sys
import time
from typing import Any

import numpy as np

from stratagem.cluster.transport.frames import HEAD_BYTES, encode, parse_head, parse_layout
from stratagem.cluster.transport.message import Message

__all__ = ["Connection", "PeerGone"]

_READ_AHEAD_BYTES = 64 * 1024
_ALIGNMENT = 64
_BULK_BYTES = 1024 * 1024
_MOST_PIECES = 64
_TLS_PIECE_BYTES = 1024 * 1024
_SECONDS_WITHOUT_PROGRESS = 60.0
_SECONDS_UNTIL_PROBED = 15
_PROBES = 3


class PeerGone(ConnectionError):
    """The other end closed the connection."""


class Connection:
    """One end of a connection between two tasks.

    The ends take turns, so what is read ahead always belongs to the message being received.

    Deadlines are times on the monotonic clock. Without one, there is no limit on how long to wait for
    a message to begin, but a message that has begun must not stand still for a minute.

    Args:
        connected: The socket, which the connection closes.
    """

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._ahead = memoryview(bytearray(_READ_AHEAD_BYTES))
        # Other systems may wait for more than their buffers hold; TLS reads records of its own size.
        self._wakes_for_bulk = sys.platform == "linux" and not isinstance(connected, ssl.SSLSocket)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _probe_when_silent(connected)

    def send(self, kind: int, method: str, message: Message, deadline: float | None) -> None:
        """Sends a message.

        Args:
            kind: One of ``Kind``.
            method: Which handler it is for; empty in answers.
            message: The message.
            deadline: When to give up.

        Raises:
            TimeoutError: If it takes too long.
            OSError: If the connection breaks.
        """
        pieces, num_bytes = encode(kind, method, message)
        if num_bytes <= _READ_AHEAD_BYTES:
            pieces = [b"".join(pieces)]
        unsent = [memoryview(piece) for piece in pieces]
        first = 0
        while first < len(unsent):
            self._allow_until(deadline)
            sent = self._send_some(unsent[first : first + _MOST_PIECES])
            while first < len(unsent) and sent >= len(unsent[first]):
                sent -= len(unsent[first])
                first += 1
            if sent:
                unsent[first] = unsent[first][sent:]

    def _send_some(self, pieces: list[memoryview]) -> int:
        if isinstance(self._socket, ssl.SSLSocket):
            return self._socket.send(pieces[0][:_TLS_PIECE_BYTES])
        return self._socket.sendmsg(pieces)

    def receive(self, deadline: float | None) -> tuple[int, str, Message]:
        """Waits for a message and returns its kind, its method and itself.

        Raises:
            TimeoutError: If it takes too long.
            PeerGone: If the other end closes the connection.
            OSError: If the connection breaks.
        """
        ahead = self._ahead
        if deadline is None:
            self._socket.settimeout(None)
        else:
            self._allow_until(deadline)
        filled = self._fill(ahead)
        filled = self._fill_to(ahead, filled, HEAD_BYTES, deadline)
        head = parse_head(ahead)
        text_end = HEAD_BYTES + head.text_bytes
        if text_end <= len(ahead):
            filled = self._fill_to(ahead, filled, text_end, deadline)
            text = bytes(ahead[HEAD_BYTES:text_end])
            rest = ahead[text_end:filled]
        else:
            whole = bytearray(head.text_bytes)
            whole[: filled - HEAD_BYTES] = ahead[HEAD_BYTES:filled]
            self._fill_to(memoryview(whole), filled - HEAD_BYTES, len(whole), deadline)
            text = bytes(whole)
            rest = ahead[:0]
        body_start = head.method_bytes + head.layout_bytes
        layout = parse_layout(text[head.method_bytes : body_start])
        arrays: tuple[np.ndarray[Any, Any], ...] = ()
        if layout.places:
            buffer = _aligned_buffer(layout.num_bytes)
            view = buffer.data
            view[: len(rest)] = rest
            self._fill_in_bulk(view, len(rest), deadline)
            arrays = layout.cut(buffer)
        return head.kind, text[: head.method_bytes].decode(), Message(text[body_start:], arrays)

    def send_bytes(self, data: bytes, deadline: float) -> None:
        """Sends bytes as they are."""
        self._allow_until(deadline)
        self._socket.sendall(data)

    def receive_bytes(self, num_bytes: int, deadline: float) -> bytes:
        """Waits for so many bytes and returns them."""
        data = bytearray(num_bytes)
        self._fill_to(memoryview(data), 0, num_bytes, deadline)
        return bytes(data)

    def is_idle(self) -> bool:
        """Returns whether the other end is there and silent, as it must be between two calls."""
        try:
            self._socket.setblocking(False)
            self._socket.recv(1)
        except (BlockingIOError, ssl.SSLWantReadError):
            return True
        except OSError:
            return False
        return False

    def interrupt(self) -> None:
        """Wakes whoever waits on the connection, on any thread, with an error."""
        with contextlib.suppress(OSError):
            # Not the one of SSLSocket, which another thread may be using.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Closes the connection. Only for the thread that uses it."""
        self.interrupt()
        self._socket.close()

    def _fill_in_bulk(self, view: memoryview, filled: int, deadline: float | None) -> None:
        if len(view) - filled < _BULK_BYTES or not self._wakes_for_bulk:
            self._fill_to(view, filled, len(view), deadline)
            return
        # To be woken for every few packets costs more than to copy them.
        while filled < len(view):
            wanted = min(_BULK_BYTES, len(view) - filled)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wanted)
            self._allow_until(deadline)
            filled += self._fill(view[filled:])
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)

    def _fill_to(
        self, view: memoryview, filled: int, num_bytes: int, deadline: float | None
    ) -> int:
        while filled < num_bytes:
            self._allow_until(deadline)
            filled += self._fill(view[filled:])
        return filled

    def _fill(self, view: memoryview) -> int:
        received = self._socket.recv_into(view)
        if not received:
            raise PeerGone("it closed the connection")
        return received

    def _allow_until(self, deadline: float | None) -> None:
        if deadline is None:
            remaining = _SECONDS_WITHOUT_PROGRESS
        elif (remaining := deadline - time.monotonic()) <= 0:
            raise TimeoutError
        self._socket.settimeout(remaining)


def _aligned_buffer(num_bytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    buffer = np.empty(num_bytes + _ALIGNMENT, np.uint8)
    start = -buffer.ctypes.data % _ALIGNMENT
    return buffer[start : start + num_bytes]


def _probe_when_silent(connected: socket.socket) -> None:
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):  # not on every system
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _SECONDS_UNTIL_PROBED)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _SECONDS_UNTIL_PROBED)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
