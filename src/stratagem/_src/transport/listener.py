"""``Listener``: lets in who proves that it belongs to the cluster, and nobody else."""

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
from stratagem._src.process.fork import end_in_child
from stratagem._src.transport.admission import Admission, Place
from stratagem._src.transport.byte_stream import ByteStream, TLSByteStream
from stratagem._src.transport.connection import Connection
from stratagem._src.transport.credentials import Credentials
from stratagem._src.transport.handshake import greet_client
from stratagem._src.transport.identity import Identity
from stratagem._src.transport.refusal_log import RefusalLog

__all__ = ["Listener"]

_log = logging.getLogger(__name__)
_MAX_UNAUTHENTICATED = 64
_SECONDS_TO_GREET = 10.0
_SECONDS_TO_SHUT_DOWN = 5.0
_SECONDS_TO_TURN_AWAY = 1.0
_SECONDS_AFTER_TROUBLE = 0.05
_MOST_IGNORED_BYTES = 64 * 1024


class Listener:
    """Listens at an address and serves connections, each in a thread of its own.

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
        address: ``host:port``; port 0 chooses one. An address that this machine has is bound alone; of a
            name, what ``addresses_of`` says.
        credentials: What peers have to prove.
        own: Whom peers have to want.
        serve: Called with each connection whose peer has proved itself. The connection is closed when
            it returns. What it raises ends this connection only.
        listening: Sockets that listen there already.
        peers: The hosts of the others, where they are known: by which interface they are reached.

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
        self._unauthenticated = Admission(_MAX_UNAUTHENTICATED)
        self._refusals = RefusalLog(_log)
        self._was_shut_down = False
        self._stopped = threading.Event()
        self._acceptor = Background(f"the listener of {own}", on_failure=lambda _: self._stop())
        self._servants = Background(f"the connections of {own}")
        end_in_child(self, Listener._end_in_child)

    @property
    def address(self) -> str:
        """Where it listens, with the real port once it has started."""
        return str(self._address)

    @property
    def was_started(self) -> bool:
        """Whether it listens, or did."""
        return bool(self._listening)

    def start(self) -> None:
        """Begins to listen.

        Raises:
            UnavailableError: If the port is in use or cannot be bound.
            RuntimeError: If it was started before.
        """
        if self.was_started or self._stopped.is_set():
            raise RuntimeError(f"The endpoint at {self.address} was started before.")
        self._credentials.check()
        self._listening = self._given or _listen(self._address, self._peers)
        self._address = Address(self._address.host, self._listening[0].getsockname()[1])
        for listening in self._listening:
            self._acceptor.start(self._accept, listening, name="listener-accept")

    def wait(self, timeout: float | None = None) -> bool:
        """Blocks until it is shut down, and returns whether it is.

        Raises:
            Exception: What ended it, if it was not shut down.
        """
        self._acceptor.process.check()
        is_over = self._stopped.wait(timeout)
        self._acceptor.check()
        return is_over

    def release_port(self) -> None:
        """Stops listening, so that another process can; connections that have been let in stay."""
        self._stop()
        self._acceptor.join(_SECONDS_TO_SHUT_DOWN)
        for listening in self._listening:
            listening.close()

    def shutdown(self) -> None:
        """Stops listening and ends every connection; what is being served has five seconds to end."""
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
        deadline = time.monotonic() + _SECONDS_TO_SHUT_DOWN
        for thread in connections.values():
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
        self._refusals.close()

    def _end_in_child(self) -> None:
        """Lets go of the port, which must be free when the parent has ended."""
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
            except OSError:  # too many open files, or a peer that left at once
                self._stopped.wait(_SECONDS_AFTER_TROUBLE)
                continue
            place = self._unauthenticated.enter(connected, str(peer[0]))
            if place is None or self._stopped.is_set():
                connected.close()
                continue
            try:
                self._servants.start(self._receive, place, name="listener-serve")
            except BaseException as error:
                connected.close()
                place.leave()
                if not isinstance(error, RuntimeError):
                    raise
                self._stopped.wait(_SECONDS_AFTER_TROUBLE)  # too many threads

    def _receive(self, place: Place) -> None:
        try:
            connection = self._greet(place)
        finally:
            place.leave()
        if connection is None:
            return
        with self._lock:
            self._connections[connection] = threading.current_thread()
        try:
            if not self._stopped.is_set():
                self._serve(connection)
        except OSError:
            pass  # the peer left, or this listener was shut down
        except Exception:
            _log.exception("the connection with %s ended by an error", connection.peer)
        finally:
            with self._lock:
                del self._connections[connection]
            connection.close()

    def _greet(self, place: Place) -> Connection | None:
        deadline = time.monotonic() + _SECONDS_TO_GREET
        connected = place.connected
        try:
            stream: ByteStream
            if self._credentials.tls is None:
                stream = ByteStream(connected)
            else:
                connected.setblocking(False)
                secured = self._credentials.tls.server_context.wrap_socket(
                    connected, server_side=True, do_handshake_on_connect=False
                )
                connected = place.connected = secured
                stream = TLSByteStream(secured, deadline)
            connection = Connection(stream)
            greet_client(connection, self._credentials, self._own, deadline, place.leave)
        except Exception as error:  # whatever a stranger may have brought about
            self._refusals.note(place.peer, _reason(error))
            _turn_away(connected)
            return None
        return connection


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"it has not proved who it is within {_SECONDS_TO_GREET:g} s"
    return str(error) or type(error).__name__


def _turn_away(connected: socket.socket) -> None:
    """Closes a connection such that the peer gets to read why, whatever it has sent."""
    raw = socket.socket  # beneath TLS
    with contextlib.suppress(OSError):
        raw.shutdown(connected, socket.SHUT_WR)
        raw.settimeout(connected, _SECONDS_TO_TURN_AWAY)
        raw.recv(connected, _MOST_IGNORED_BYTES)
    connected.close()


def _listen(wanted: Address, peers: Sequence[str]) -> list[socket.socket]:
    try:
        return listen(wanted, peers)
    except OSError as error:
        reason = os.strerror(error.errno or 0).lower()
        raise UnavailableError(
            f"The address {wanted} must be free and this machine's, but it cannot be bound: {reason}. "
            "If another process uses the port, end it, or choose another port."
        ) from None
