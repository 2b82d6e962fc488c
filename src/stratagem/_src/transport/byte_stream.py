"""``ByteStream``: a socket with deadlines, on which one thread may send while another receives."""

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
from collections.abc import Callable, Sequence
from typing import Any

from stratagem._src.process.fork import close_in_child

__all__ = ["ByteStream", "PeerDisconnectedError", "TLSByteStream"]

_MAX_TLS_WRITE_BYTES = 1024 * 1024
_KEEPALIVE_SECONDS = 15
_KEEPALIVE_PROBES = 3
_TCP_INFO = struct.Struct("=2xB5x16xI16x12xI")
"""Fields of Linux's tcp_info: retransmits, unacknowledged segments, milliseconds since the last ACK."""
_MIN_RETRANSMITS = 5
"""After this many, the first retransmit was at least 6 s ago, even if the connection was idle before."""


class PeerDisconnectedError(ConnectionError):
    """The peer closed the connection."""


class ByteStream:
    """A socket whose two directions have independent deadlines.

    Deadlines are times on the monotonic clock; ``None`` waits indefinitely.

    Args:
        connected: The socket. The stream closes it.

    Attributes:
        supports_low_watermark: Whether ``set_low_watermark`` has an effect, and a short read means that the
            socket is drained.
    """

    def __init__(self, connected: socket.socket) -> None:
        self._socket: Any = connected
        connected.setblocking(False)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _enable_keepalive(connected)
        # On other systems a low watermark above the size of the receive buffer may block forever.
        self.supports_low_watermark: bool = sys.platform == "linux"
        self._low_watermark = 1
        self._readable = self._poll_for(select.POLLIN)
        # A forked child must close its descriptor: it could send data as the parent, and while it is open
        # the peer cannot see that the parent is gone.
        close_in_child(self, ByteStream.close)

    @property
    def peer_certificate(self) -> bytes | None:
        """The peer's certificate, if the stream uses TLS."""
        return None

    @property
    def own_host(self) -> str:
        """The local address of the socket."""
        return str(self._socket.getsockname()[0])

    @property
    def peer_host(self) -> str:
        """The remote address of the socket."""
        return str(self._socket.getpeername()[0])

    @property
    def has_room(self) -> bool:
        """Whether a few kilobytes can be sent without blocking."""
        # A socket polls as writable only when a good part of its send buffer is free.
        try:
            writable = self._poll_for(select.POLLOUT)
        except ValueError:  # it was closed
            return False
        return bool(writable.poll(0))

    @property
    def unacknowledged_seconds(self) -> float:
        """Seconds for which the peer's host has not acknowledged data that is due; 0 if unknown.

        A peer that just does not read does not count: its kernel still acknowledges.
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

    def set_user_timeout(self, seconds: float) -> None:
        """Ends the connection when sent data stays unacknowledged for ``seconds`` (TCP_USER_TIMEOUT).

        Keepalive probes do not cover this case: Linux sends none while data is unacknowledged, and
        retransmits that data for a quarter of an hour.
        """
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # not on every system
            milliseconds = int(1000 * seconds)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)

    def send(self, buffers: Sequence[bytes | memoryview], deadline: float | None) -> int:
        """Sends a prefix of the buffers; returns the number of bytes sent.

        Raises:
            TimeoutError: If nothing can be sent before the deadline.
            OSError: If the connection breaks.
        """
        while True:
            try:
                if len(buffers) == 1:
                    return int(self._socket.send(buffers[0]))
                return int(self._socket.sendmsg(buffers))
            except BlockingIOError:
                self._wait(self._poll_for(select.POLLOUT), deadline)

    def receive_into(self, view: memoryview, deadline: float | None, low_watermark: int = 1) -> int:
        """Receives available bytes into ``view``; returns the number of bytes.

        Args:
            view: The destination.
            deadline: When to give up.
            low_watermark: The number of bytes to wait for; fewer may be returned. Waking up for every
                packet is slow.

        Raises:
            TimeoutError: If nothing arrives before the deadline.
            PeerDisconnectedError: If the peer has closed the connection.
            OSError: If the connection breaks.
        """
        self.set_low_watermark(low_watermark)
        while True:
            self._wait(self._readable, deadline)
            try:
                return _received(self._socket.recv_into(view))
            except BlockingIOError:
                continue

    def fileno(self) -> int:
        """Returns the file descriptor, for polling several streams at once."""
        return int(self._socket.fileno())

    def set_low_watermark(self, num_bytes: int) -> None:
        """Makes the socket poll as readable only when ``num_bytes`` have arrived (SO_RCVLOWAT)."""
        if self.supports_low_watermark and num_bytes != self._low_watermark:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, num_bytes)
            self._low_watermark = num_bytes

    def limit_unsent(self, num_bytes: int) -> None:
        """Limits the unsent bytes in the kernel's send buffer (TCP_NOTSENT_LOWAT), if supported."""
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, num_bytes)

    def try_send(self, buffers: Sequence[memoryview]) -> int:
        """Sends what fits into the send buffer without blocking; returns the number of bytes.

        Raises:
            OSError: If the connection breaks.
        """
        try:
            return int(self._socket.sendmsg(buffers))
        except BlockingIOError:
            return 0

    def try_receive_into(self, view: memoryview) -> int:
        """Receives what has arrived without blocking; returns the number of bytes.

        Raises:
            PeerDisconnectedError: If the peer has closed the connection.
            OSError: If the connection breaks.
        """
        try:
            return _received(self._socket.recv_into(view))
        except BlockingIOError:
            return 0

    def is_idle(self) -> bool:
        """Returns whether the peer is connected and there is no unread data."""
        try:
            self._socket.recv(1)
        except (BlockingIOError, ssl.SSLWantReadError):
            return True
        except OSError:
            return False
        return False

    def interrupt(self) -> None:
        """Makes pending sends and receives fail, in any thread."""
        with contextlib.suppress(OSError):
            # Not SSLSocket.shutdown: another thread may be using the SSL object.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Closes the socket. No thread may be using it."""
        self._socket.close()

    def _poll_for(self, event: int) -> select.poll:
        poll = select.poll()
        poll.register(self._socket, event)
        return poll

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
    """A stream over TLS.

    Args:
        connected: The socket, before the TLS handshake.
        deadline: When the TLS handshake must be complete.

    Raises:
        ssl.SSLError: If the peers do not trust each other.
        OSError: If the peer disconnects, or does not respond in time.
    """

    def __init__(self, connected: ssl.SSLSocket, deadline: float) -> None:
        super().__init__(connected)
        self.supports_low_watermark = False  # TLS has its own records and buffers
        self._lock = threading.Lock()
        self._attempt(connected.do_handshake, deadline)
        self._certificate = connected.getpeercert(binary_form=True)

    @property
    def peer_certificate(self) -> bytes | None:
        """The peer's certificate."""
        return self._certificate

    def send(self, buffers: Sequence[bytes | memoryview], deadline: float | None) -> int:
        """Sends a prefix of the first buffer; returns the number of bytes."""
        return int(
            self._attempt(
                self._socket.send, deadline, memoryview(buffers[0])[:_MAX_TLS_WRITE_BYTES]
            )
        )

    def receive_into(self, view: memoryview, deadline: float | None, low_watermark: int = 1) -> int:
        """Receives available bytes into ``view``; returns the number of bytes."""
        return _received(self._attempt(self._socket.recv_into, deadline, view))

    def try_send(self, buffers: Sequence[memoryview]) -> int:
        """Sends a prefix of the first buffer without blocking; returns the number of bytes."""
        try:
            with self._lock:
                return int(self._socket.send(buffers[0][:_MAX_TLS_WRITE_BYTES]))
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return 0

    def try_receive_into(self, view: memoryview) -> int:
        """Receives what has arrived without blocking; returns the number of bytes."""
        try:
            with self._lock:
                return _received(self._socket.recv_into(view))
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return 0

    def is_idle(self) -> bool:
        """Returns whether the peer is connected and there is no unread data."""
        with self._lock:
            return super().is_idle()

    def _attempt(
        self, operation: Callable[..., Any], deadline: float | None, *arguments: Any
    ) -> Any:
        while True:
            try:
                with self._lock:  # an SSL object must not be used by two threads at once
                    return operation(*arguments)
            except ssl.SSLWantReadError:
                event = select.POLLIN
            except ssl.SSLWantWriteError:
                event = select.POLLOUT
            self._wait(self._poll_for(event), deadline)


def _received(num_bytes: int) -> int:
    if not num_bytes:
        raise PeerDisconnectedError("it closed the connection")
    return num_bytes


def _enable_keepalive(connected: socket.socket) -> None:
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):  # not on every system
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_SECONDS)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_SECONDS)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _KEEPALIVE_PROBES)
