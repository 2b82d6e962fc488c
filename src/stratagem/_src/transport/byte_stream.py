"""``ByteStream``: the bytes of a connection, which one thread may send while another receives."""

from __future__ import annotations

import contextlib
import math
import select
import socket
import ssl
import struct
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from stratagem._src.process.fork import end_in_child

__all__ = ["ByteStream", "PeerGone", "TLSByteStream"]

_TLS_PIECE_BYTES = 1024 * 1024
_SECONDS_UNTIL_PROBED = 15
_PROBES = 3
_TCP_INFO = struct.Struct("=2xB5x16xI16x12xI")
"""Of Linux's tcp_info: retransmits, unacknowledged segments, milliseconds since the last one came."""
_MIN_RETRANSMITS = 5
"""After so many the first one is 6 s or more ago: also if the connection was idle before."""


class PeerGone(ConnectionError):
    """The other end closed the connection."""


class ByteStream:
    """A socket whose two directions have deadlines of their own.

    Deadlines are times on the monotonic clock; ``None`` waits without an end.

    Args:
        connected: The socket, which the stream closes.

    Attributes:
        wakes_for_bulk: Whether ``wake_for`` has an effect, and less than was asked for is all there is.
    """

    def __init__(self, connected: socket.socket) -> None:
        self._socket: Any = connected
        connected.setblocking(False)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _probe_when_silent(connected)
        # Other systems may wait for more than their buffers hold.
        self.wakes_for_bulk: bool = sys.platform == "linux"
        self._fewest_to_wake = 1
        self._arrival = self._waiting_for(select.POLLIN)
        # The child's own handle: what is sent there would be sent in the parent's name, and the peer could
        # not see that the parent is gone.
        end_in_child(self, ByteStream.close)

    @property
    def peer_certificate(self) -> bytes | None:
        """The certificate by which the other end proved itself, if TLS protects the stream."""
        return None

    @property
    def own_host(self) -> str:
        """The address of this machine on the way to the other end."""
        return str(self._socket.getsockname()[0])

    @property
    def peer_host(self) -> str:
        """The address of the other end."""
        return str(self._socket.getpeername()[0])

    @property
    def has_room(self) -> bool:
        """Whether some kilobytes can be sent without waiting for the other end."""
        # Systems say so when a good part of their buffer is free, not already at the first byte.
        asking = select.poll()
        try:
            asking.register(self._socket, select.POLLOUT)
        except ValueError:  # it was closed
            return False
        return bool(asking.poll(0))

    @property
    def unacknowledged_seconds(self) -> float:
        """For how long the other host has acknowledged nothing though it should; 0 where that is unknown.

        A peer that only does not read has a kernel that acknowledges.
        """
        if sys.platform != "linux":
            return 0.0
        try:
            info = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
        except OSError:
            return 0.0
        if len(info) < _TCP_INFO.size:
            return 0.0
        retransmits, unacknowledged, milliseconds = _TCP_INFO.unpack(info)
        is_due = unacknowledged > 0 and retransmits >= _MIN_RETRANSMITS
        return milliseconds / 1000 if is_due else 0.0

    def end_when_unacknowledged(self, seconds: float) -> None:
        """Ends the connection when nothing of what was sent is acknowledged, or taken in, for so long.

        Keepalive probes do not help there: Linux sends none while data waits to be acknowledged, and
        repeats that data for a quarter of an hour.
        """
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # not on every system
            milliseconds = int(1000 * seconds)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)

    def send(self, pieces: Sequence[bytes | memoryview], deadline: float | None) -> int:
        """Sends some of the pieces, from the first on, and returns how many bytes.

        Raises:
            TimeoutError: If none can be sent before the deadline.
            OSError: If the connection breaks.
        """
        while True:
            try:
                if len(pieces) == 1:
                    return int(self._socket.send(pieces[0]))
                return int(self._socket.sendmsg(pieces))
            except BlockingIOError:
                self._wait(self._waiting_for(select.POLLOUT), deadline)

    def receive_into(self, view: memoryview, deadline: float | None, fewest: int = 1) -> int:
        """Receives some bytes and returns how many.

        Args:
            view: Where they go.
            deadline: When to give up.
            fewest: How many are awaited; fewer may come. To be woken for every packet is slow.

        Raises:
            TimeoutError: If none come before the deadline.
            PeerGone: If the other end has closed the connection.
            OSError: If the connection breaks.
        """
        self.wake_for(fewest)
        while True:
            self._wait(self._arrival, deadline)
            try:
                return _received(self._socket.recv_into(view))
            except BlockingIOError:
                continue

    def fileno(self) -> int:
        """Returns the descriptor to poll, for who waits for several streams at once."""
        return int(self._socket.fileno())

    def wake_for(self, num_bytes: int) -> None:
        """Asks the system to call the stream readable only when so many bytes have come."""
        if self.wakes_for_bulk and num_bytes != self._fewest_to_wake:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, num_bytes)
            self._fewest_to_wake = num_bytes

    def limit_unsent(self, num_bytes: int) -> None:
        """Lets the system take no more than so many bytes that it cannot send yet, where it knows how."""
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, num_bytes)

    def try_send(self, pieces: Sequence[memoryview]) -> int:
        """Sends what there is room for and returns how many bytes; 0 if there is none.

        Raises:
            OSError: If the connection breaks.
        """
        try:
            return int(self._socket.sendmsg(pieces))
        except BlockingIOError:
            return 0

    def try_receive_into(self, view: memoryview) -> int:
        """Receives what has come and returns how many bytes; 0 if nothing has.

        Raises:
            PeerGone: If the other end has closed the connection.
            OSError: If the connection breaks.
        """
        try:
            return _received(self._socket.recv_into(view))
        except BlockingIOError:
            return 0

    def is_silent(self) -> bool:
        """Returns whether the other end is there and has sent nothing that was not received."""
        try:
            self._socket.recv(1)
        except (BlockingIOError, ssl.SSLWantReadError):
            return True
        except OSError:
            return False
        return False

    def interrupt(self) -> None:
        """Wakes whoever sends or receives, on any thread, with an error."""
        with contextlib.suppress(OSError):
            # Not the one of SSLSocket, which another thread may be using.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Frees the socket, which nobody may be using."""
        self._socket.close()

    def _waiting_for(self, event: int) -> select.poll:
        waiting = select.poll()
        waiting.register(self._socket, event)
        return waiting

    def _wait(self, event: select.poll, deadline: float | None) -> None:
        milliseconds = None
        if deadline is not None:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise TimeoutError
            milliseconds = math.ceil(1000 * remaining)
        if not event.poll(milliseconds):
            raise TimeoutError


class TLSByteStream(ByteStream):
    """A stream that TLS protects.

    Args:
        connected: The socket, which has not greeted the peer yet.
        deadline: When the greeting must be over.

    Raises:
        ssl.SSLError: If the two do not trust each other.
        OSError: If the peer goes away, or does not answer in time.
    """

    def __init__(self, connected: ssl.SSLSocket, deadline: float) -> None:
        super().__init__(connected)
        self.wakes_for_bulk = False  # it reads records of its own size
        self._lock = threading.Lock()
        self._attempt(connected.do_handshake, deadline)
        self._certificate = connected.getpeercert(binary_form=True)

    @property
    def peer_certificate(self) -> bytes | None:
        """The certificate by which the other end proved itself."""
        return self._certificate

    def send(self, pieces: Sequence[bytes | memoryview], deadline: float | None) -> int:
        """Sends some of the first piece and returns how many bytes."""
        return int(
            self._attempt(self._socket.send, deadline, memoryview(pieces[0])[:_TLS_PIECE_BYTES])
        )

    def receive_into(self, view: memoryview, deadline: float | None, fewest: int = 1) -> int:
        """Receives some bytes and returns how many."""
        return _received(self._attempt(self._socket.recv_into, deadline, view))

    def try_send(self, pieces: Sequence[memoryview]) -> int:
        """Sends some of the first piece and returns how many bytes; 0 if there is no room."""
        try:
            with self._lock:
                return int(self._socket.send(pieces[0][:_TLS_PIECE_BYTES]))
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return 0

    def try_receive_into(self, view: memoryview) -> int:
        """Receives what has come and returns how many bytes; 0 if nothing has."""
        try:
            with self._lock:
                return _received(self._socket.recv_into(view))
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return 0

    def is_silent(self) -> bool:
        """Returns whether the other end is there and has sent nothing that was not received."""
        with self._lock:
            return super().is_silent()

    def _attempt(self, operation: Any, deadline: float | None, *arguments: Any) -> Any:
        while True:
            try:
                with self._lock:  # of which both directions are
                    return operation(*arguments)
            except ssl.SSLWantReadError:
                event = select.POLLIN
            except ssl.SSLWantWriteError:
                event = select.POLLOUT
            self._wait(self._waiting_for(event), deadline)


def _received(num_bytes: int) -> int:
    if not num_bytes:
        raise PeerGone("it closed the connection")
    return num_bytes


def _probe_when_silent(connected: socket.socket) -> None:
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):  # not on every system
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _SECONDS_UNTIL_PROBED)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _SECONDS_UNTIL_PROBED)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
