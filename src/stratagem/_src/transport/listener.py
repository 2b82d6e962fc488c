"""``Listener``: accepts connections from authenticated peers only."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from stratagem._src.cluster.address import Address
from stratagem._src.cluster.listening import listen
from stratagem._src.core.errors import UnavailableError
from stratagem._src.process.background import Background, BackgroundThread
from stratagem._src.process.fork import close_in_child
from stratagem._src.transport.byte_stream import ByteStream, TLSByteStream
from stratagem._src.transport.connection import Connection
from stratagem._src.transport.connection_limiter import ConnectionLimiter, ConnectionSlot
from stratagem._src.transport.credentials import Credentials
from stratagem._src.transport.handshake import server_handshake
from stratagem._src.transport.identity import Identity
from stratagem._src.transport.rejection_log import RejectionLog

__all__ = ["Listener"]

_log = logging.getLogger(__name__)
_MAX_UNAUTHENTICATED = 64
_HANDSHAKE_TIMEOUT = 10.0
_SHUTDOWN_TIMEOUT = 5.0
_REJECT_TIMEOUT = 1.0
_ACCEPT_RETRY_SECONDS = 0.05
_MAX_DISCARDED_BYTES = 64 * 1024


class Listener:
    """Listens at an address and serves each connection in its own thread.

    >>> import time
    >>> from stratagem._src.transport import Credentials, Identity, Kind, Listener, Message, connect
    >>> def greet(connection):
    ...     connection.send(Kind.EVENT, "", Message(f"welcome, {connection.peer}".encode()), None)
    >>> credentials = Credentials(secret="correct horse battery staple")
    >>> listener = Listener("127.0.0.1:0", credentials, Identity("host"), greet)
    >>> listener.start()
    >>> deadline = time.monotonic() + 5
    >>> connection = connect(
    ...     listener.address,
    ...     credentials,
    ...     own=Identity("guest", 7),
    ...     wanted=Identity("host"),
    ...     deadline=deadline,
    ... )
    >>> connection.receive(deadline)[-1].body
    b'welcome, guest:7'
    >>> connection.close(), listener.shutdown()
    (None, None)

    Args:
        address: ``host:port``; port 0 chooses a free port. If the host is an address of this machine, only
            that is bound; for a name, the addresses that ``addresses_of`` returns.
        credentials: The credentials that peers must have.
        own: The identity of this task, which peers must expect.
        serve: Called with each authenticated connection. The connection is closed when it returns. An
            exception ends this connection only.
        listening: Sockets that already listen at the address.
        peers: The known hosts of the other tasks, which determine the interface to bind.

    Raises:
        PermissionDeniedError: If there is neither secret nor TLS and the address is not loopback.
    """

    def __init__(
        self,
        address: str,
        credentials: Credentials,
        own: Identity,
        serve: Callable[[Connection], None],
        *,
        listening: Sequence[socket.socket] = (),
        peers: Iterable[str] = (),
    ) -> None:
        self._address = Address.parse(address)
        self._credentials = credentials.for_host(self._address.host)
        self._own = own
        self._serve = serve
        self._given = listening
        self._peers = tuple(peers)
        self._listening: Sequence[socket.socket] = ()
        self._lock = threading.Lock()
        self._connections: dict[Connection, BackgroundThread] = {}
        self._unauthenticated = ConnectionLimiter(_MAX_UNAUTHENTICATED)
        self._rejections = RejectionLog(_log)
        self._was_shut_down = False
        self._stopped = threading.Event()
        self._acceptor = Background(f"the listener of {own}", on_failure=lambda _: self._stop())
        self._handlers = Background(f"the connections of {own}")
        close_in_child(self, Listener._end_in_child)

    @property
    def address(self) -> str:
        """The address that it listens at, with the actual port once it has started."""
        return str(self._address)

    @property
    def was_started(self) -> bool:
        """Whether it was started, also if it was shut down since."""
        return bool(self._listening)

    def start(self) -> None:
        """Starts to listen.

        Raises:
            UnavailableError: If the port is in use or cannot be bound.
            RuntimeError: If it was started before.
        """
        if self.was_started or self._stopped.is_set():
            raise RuntimeError(f"The server at {self.address} was started before.")
        self._credentials.check()
        self._listening = self._given or _listen(self._address, self._peers)
        self._address = Address(self._address.host, self._listening[0].getsockname()[1])
        for listening in self._listening:
            self._acceptor.start(self._accept, listening, name="listener-accept")

    def wait(self, timeout: float | None = None) -> bool:
        """Blocks until it is shut down or the timeout passes; returns whether it is shut down.

        Raises:
            Exception: The error that ended it, if it was not shut down.
        """
        self._acceptor.process.check()
        is_over = self._stopped.wait(timeout)
        self._acceptor.check()
        return is_over

    def release_port(self) -> None:
        """Stops listening, so that another process can bind the port; existing connections stay open."""
        self._stop()
        self._acceptor.join(_SHUTDOWN_TIMEOUT)
        for listening in self._listening:
            listening.close()

    def shutdown(self) -> None:
        """Stops listening and ends every connection; threads that serve them get five seconds to finish."""
        if not self._acceptor.process.is_here:
            return
        with self._lock:
            was_shut_down, self._was_shut_down = self._was_shut_down, True
        if was_shut_down or not self._listening:
            self._stop()
            return
        self.release_port()
        with self._lock:
            connections = dict(self._connections)
        for connection in connections:
            connection.interrupt()
        deadline = time.monotonic() + _SHUTDOWN_TIMEOUT
        for thread in connections.values():
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
        self._rejections.close()

    def _end_in_child(self) -> None:
        """Closes the child's copies of the sockets: the port must be free when the parent has ended."""
        for listening in self._listening:
            listening.close()

    def _stop(self) -> None:
        for listening in self._listening:
            with contextlib.suppress(OSError):
                listening.shutdown(socket.SHUT_RDWR)
        self._stopped.set()

    def _accept(self, listening: socket.socket) -> None:
        while not self._stopped.is_set():
            try:
                connected, peer = listening.accept()
            except OSError:  # too many open files, or a peer that disconnected at once
                self._stopped.wait(_ACCEPT_RETRY_SECONDS)
                continue
            slot = self._unauthenticated.acquire(connected, str(peer[0]))
            if slot is None or self._stopped.is_set():
                connected.close()
                continue
            try:
                self._handlers.start(self._receive, slot, name="listener-serve")
            except BaseException as error:
                connected.close()
                slot.release()
                if not isinstance(error, RuntimeError):
                    raise
                self._stopped.wait(_ACCEPT_RETRY_SECONDS)  # too many threads

    def _receive(self, slot: ConnectionSlot) -> None:
        try:
            connection = self._handshake(slot)
        finally:
            slot.release()
        if connection is None:
            return
        with self._lock:
            self._connections[connection] = threading.current_thread()
        try:
            if not self._stopped.is_set():
                self._serve(connection)
        except OSError:
            pass  # the peer disconnected, or this listener was shut down
        except Exception:
            _log.exception("the connection with %s ended with an error", connection.peer)
        finally:
            with self._lock:
                del self._connections[connection]
            connection.close()

    def _handshake(self, slot: ConnectionSlot) -> Connection | None:
        deadline = time.monotonic() + _HANDSHAKE_TIMEOUT
        connected = slot.connected
        try:
            stream: ByteStream
            if self._credentials.tls is None:
                stream = ByteStream(connected)
            else:
                connected.setblocking(False)
                secured = self._credentials.tls.server_context.wrap_socket(
                    connected, server_side=True, do_handshake_on_connect=False
                )
                connected = slot.connected = secured
                stream = TLSByteStream(secured, deadline)
            connection = Connection(stream)
            server_handshake(connection, self._credentials, self._own, deadline, slot.release)
        except Exception as error:  # an unauthenticated peer may cause any error
            self._rejections.note(slot.peer, _reason(error))
            _reject(connected)
            return None
        return connection


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"it did not complete the handshake within {_HANDSHAKE_TIMEOUT:g} s"
    return str(error) or type(error).__name__


def _reject(connected: socket.socket) -> None:
    """Closes a connection such that the peer can still read the reason, whatever it has sent."""
    # The methods of the plain socket, below TLS. Closing with unread data would send a reset, which
    # discards data that the peer has not read yet; so read what it has sent first.
    raw = socket.socket
    with contextlib.suppress(OSError):
        raw.shutdown(connected, socket.SHUT_WR)
        raw.settimeout(connected, _REJECT_TIMEOUT)
        raw.recv(connected, _MAX_DISCARDED_BYTES)
    connected.close()


def _listen(wanted: Address, peers: Sequence[str]) -> list[socket.socket]:
    try:
        return listen(wanted, peers)
    except OSError as error:
        reason = os.strerror(error.errno or 0).lower()
        raise UnavailableError(
            f"The address {wanted} must be free and belong to this machine, but it cannot be bound: "
            f"{reason}. If another process uses the port, stop it, or choose another port."
        ) from None
