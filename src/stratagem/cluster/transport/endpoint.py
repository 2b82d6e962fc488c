"""``Endpoint``: where a task answers the others."""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import os
import socket
import threading
import time
from collections.abc import Mapping

from stratagem.cluster.address import Address
from stratagem.cluster.transport.connection import Connection
from stratagem.cluster.transport.credentials import Credentials
from stratagem.cluster.transport.frames import Kind
from stratagem.cluster.transport.greeting import greet_client
from stratagem.cluster.transport.local_peer import check_same_user
from stratagem.cluster.transport.message import Handler, Message
from stratagem.cluster.transport.remote_error import exception_to_bytes
from stratagem.core.errors import (
    InvalidArgumentError,
    PermissionDeniedError,
    UnavailableError,
)

__all__ = ["Endpoint"]

_log = logging.getLogger(__name__)
_MOST_STRANGERS = 64
_SECONDS_TO_GREET = 10.0
_SECONDS_TO_SHUT_DOWN = 5.0
_SECONDS_TO_TURN_AWAY = 1.0
_MOST_IGNORED_BYTES = 64 * 1024
_BACKLOG = 128


class Endpoint:
    """Listens at an address and answers messages with handlers, one thread per connection.

    >>> from stratagem.cluster.transport import Channel, Credentials, Endpoint, Message
    >>> credentials = Credentials(secret="correct horse battery staple")
    >>> endpoint = Endpoint("127.0.0.1:0", {"echo": lambda message: message}, credentials)
    >>> endpoint.start()
    >>> channel = Channel(endpoint.address, credentials)
    >>> channel.call("echo", Message(b"hello"), timeout=5).body
    b'hello'
    >>> channel.close(), endpoint.shutdown()
    (None, None)

    Args:
        address: ``host:port``; port 0 chooses one. A host that is this machine's loopback is bound
            alone, any other means all interfaces, since the name under which others reach a task is
            often not one it can bind.
        handlers: What answers each method.
        credentials: What peers have to prove.

    Raises:
        PermissionDeniedError: If peers need to prove nothing and the address is not loopback.
    """

    def __init__(
        self, address: str, handlers: Mapping[str, Handler], credentials: Credentials
    ) -> None:
        self._address = Address.parse(address)
        self._handlers = dict(handlers)
        self._credentials = credentials
        self._bound = _host_to_bind(self._address.host)
        if self._bound is None and not credentials.prove_something:
            raise PermissionDeniedError(
                f"Without a secret or TLS only this machine may connect, so the address must be "
                f"loopback, got {address!r}. Set STRATAGEM_CLUSTER_SECRET or the STRATAGEM_TLS_ "
                "variables in every task ('stratagem run' makes a secret), or use 127.0.0.1."
            )
        self._listening: socket.socket | None = None
        self._acceptor: threading.Thread | None = None
        self._lock = threading.Lock()
        self._answering: dict[Connection, threading.Thread] = {}
        self._strangers = 0
        self._stopped = threading.Event()

    @property
    def address(self) -> str:
        """Where it listens, with the real port once it has started."""
        return str(self._address)

    @property
    def was_started(self) -> bool:
        """Whether it listens, or did."""
        return self._listening is not None

    def start(self) -> None:
        """Begins to listen.

        Raises:
            UnavailableError: If the port is in use or cannot be bound.
            RuntimeError: If it was started before.
        """
        if self.was_started or self._stopped.is_set():
            raise RuntimeError(f"The endpoint at {self.address} was started before.")
        self._credentials.check()
        self._listening = _listen(self._bound, self._address)
        self._address = Address(self._address.host, self._listening.getsockname()[1])
        self._acceptor = threading.Thread(
            target=self._accept, args=(self._listening,), name="endpoint-accept", daemon=True
        )
        self._acceptor.start()

    def wait(self, timeout: float | None = None) -> bool:
        """Blocks until it is shut down, and returns whether it is."""
        return self._stopped.wait(timeout)

    def shutdown(self) -> None:
        """Stops listening and ends every connection; handlers that run have five seconds to finish."""
        if self._listening is None or self._stopped.is_set():
            self._stopped.set()
            return
        self._stopped.set()
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        assert self._acceptor is not None
        self._acceptor.join(_SECONDS_TO_SHUT_DOWN)
        self._listening.close()
        with self._lock:
            answering = dict(self._answering)
        for connection in answering:
            connection.interrupt()
        deadline = time.monotonic() + _SECONDS_TO_SHUT_DOWN
        for thread in answering.values():
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    def _accept(self, listening: socket.socket) -> None:
        while not self._stopped.is_set():
            try:
                connected, _ = listening.accept()
            except OSError:
                if not self._stopped.wait(0.05):
                    continue  # too many open files, or a peer that left at once
                return
            with self._lock:
                admitted = self._strangers < _MOST_STRANGERS and not self._stopped.is_set()
                self._strangers += admitted
            if not admitted:
                connected.close()
                continue
            threading.Thread(
                target=self._serve, args=(connected,), name="endpoint-answer", daemon=True
            ).start()

    def _serve(self, connected: socket.socket) -> None:
        try:
            connection = self._greet(connected)
        finally:
            with self._lock:
                self._strangers -= 1
        if connection is None:
            return
        with self._lock:
            self._answering[connection] = threading.current_thread()
        try:
            while not self._stopped.is_set():
                _, method, message = connection.receive(deadline=None)
                self._answer(connection, method, message)
        except OSError:
            pass  # the peer left, or this endpoint was shut down
        except Exception:
            _log.exception("a message was not understood; is the other task of another version?")
        finally:
            with self._lock:
                del self._answering[connection]
            connection.close()

    def _greet(self, connected: socket.socket) -> Connection | None:
        deadline = time.monotonic() + _SECONDS_TO_GREET
        peer = "somebody who left"
        try:
            peer = str(connected.getpeername()[0])
            if not self._credentials.prove_something:
                check_same_user(connected)
            if self._credentials.tls is not None:
                connected.settimeout(_SECONDS_TO_GREET)
                secured = self._credentials.tls.server_context.wrap_socket(
                    connected, server_side=True, do_handshake_on_connect=False
                )
                connected = secured
                secured.do_handshake()
            connection = Connection(connected)
            greet_client(connection, self._credentials.secret, deadline)
        except Exception as error:  # whatever a stranger may have brought about
            _log.warning("refused a connection from %s: %s", peer, error)
            _turn_away(connected)
            return None
        return connection

    def _answer(self, connection: Connection, method: str, message: Message) -> None:
        try:
            answer, kind = self._handler(method)(message), Kind.RESULT
        except BaseException as error:
            answer, kind = Message(exception_to_bytes(error)), Kind.ERROR
        try:
            connection.send(kind, "", answer, deadline=None)
        except InvalidArgumentError as error:  # arrays that cannot travel
            connection.send(Kind.ERROR, "", Message(exception_to_bytes(error)), deadline=None)

    def _handler(self, method: str) -> Handler:
        handler = self._handlers.get(method)
        if handler is None:
            raise InvalidArgumentError(
                f"A method must be one of {sorted(self._handlers)}, got {method!r}."
            )
        return handler


def _turn_away(connected: socket.socket) -> None:
    """Closes a connection such that the peer gets to read why, whatever it has sent."""
    raw = socket.socket  # beneath TLS
    with contextlib.suppress(OSError):
        raw.shutdown(connected, socket.SHUT_WR)
        raw.settimeout(connected, _SECONDS_TO_TURN_AWAY)
        raw.recv(connected, _MOST_IGNORED_BYTES)
    connected.close()


def _host_to_bind(host: str) -> str | None:
    """Returns the loopback address that a host stands for, or None if it is another."""
    if host == "localhost":
        return "127.0.0.1"
    try:
        return host if ipaddress.ip_address(host).is_loopback else None
    except ValueError:
        return None


def _listen(bound: str | None, wanted: Address) -> socket.socket:
    listening = None
    try:
        if bound is None:
            dual = socket.has_dualstack_ipv6()
            family = socket.AF_INET6 if dual else socket.AF_INET
            listening = socket.create_server(
                ("", wanted.port), family=family, backlog=_BACKLOG, dualstack_ipv6=dual
            )
        else:
            family = socket.AF_INET6 if ":" in bound else socket.AF_INET
            listening = socket.create_server((bound, wanted.port), family=family, backlog=_BACKLOG)
    except OSError as error:
        reason = os.strerror(error.errno or 0).lower()
        raise UnavailableError(
            f"The address {wanted} must be free and this machine's, but it cannot be bound: {reason}. "
            "If another process uses the port, end it, or choose another port."
        ) from None
    return listening
