"""``Relay``: tunnels JAX's coordination service through the membership server.

The service authenticates no one, and its clients abort their process when the connection breaks. So the
service listens on a private socket on the membership server's host, the client of each worker connects to a
private socket of that worker, and the relay forwards the bytes over an authenticated, encrypted connection.
When that connection breaks, the client only stops receiving, and we raise the error.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time

from stratagem._src.cluster.address import Address
from stratagem._src.control_plane.identities import MEMBERSHIP_SERVER, RELAY_ROLE
from stratagem._src.control_plane.private_socket import PrivateSocket
from stratagem._src.core.errors import StratagemError
from stratagem._src.process.background import Background
from stratagem._src.transport import Connection, Credentials, Identity, Kind, Message, connect

__all__ = ["Relay", "serve_relay"]

_log = logging.getLogger("stratagem")
_CHUNK = 65536
_CONNECT_TIMEOUT = 10.0


class Relay:
    """Forwards connections from a private socket of this process to the service.

    Args:
        server: The address of the membership server.
        credentials: The credentials of the cluster.
        worker: The rank of this worker.
    """

    def __init__(self, server: Address, credentials: Credentials, worker: int) -> None:
        self._server = server
        self._credentials = credentials
        self._identity = Identity(RELAY_ROLE, worker)
        self._place = PrivateSocket()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self._place.path)
        self._listener.listen()
        self._closed = threading.Event()
        self._background = Background(f"the relay of worker {worker}")
        self._background.start(self._accept, name="relay-accept")

    @property
    def address(self) -> str:
        """The address for JAX's client."""
        return self._place.grpc_address

    def close(self) -> None:
        """Stops accepting connections."""
        self._closed.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._place.close()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:  # too many open files, or closed
                self._closed.wait(0.05)
                continue
            self._background.start(self._forward, client, name="relay")

    def _forward(self, client: socket.socket) -> None:
        deadline = time.monotonic() + _CONNECT_TIMEOUT
        with client:
            try:
                service = connect(
                    self._server,
                    self._credentials,
                    own=self._identity,
                    wanted=MEMBERSHIP_SERVER,
                    deadline=deadline,
                )
            except StratagemError as error:
                _log.warning("JAX's coordination service cannot be reached: %s", error)
                _drain(client)
                return
            self._background.start(_to_local, service, client, name="relay")
            _from_local(client, service)


def serve_relay(connection: Connection, service: str) -> None:
    """Forwards a relay's connection to the service, at the path of its socket, and back."""
    background = Background(f"{connection.peer}")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as local:
        local.connect(service)
        answers = background.start(_from_local, local, connection, name="relay")
        _to_local(connection, local)
        with contextlib.suppress(OSError):
            local.shutdown(socket.SHUT_RDWR)
        answers.join()


def _from_local(local: socket.socket, connection: Connection) -> None:
    """Forwards until the local end closes. The local end does not notice when the remote end is lost."""
    with contextlib.suppress(OSError):
        while data := local.recv(_CHUNK):
            connection.send(Kind.EVENT, "", Message(data), deadline=None)
    _drain(local)
    connection.close()


def _to_local(connection: Connection, local: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            local.sendall(connection.receive(deadline=None)[2].body)


def _drain(local: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while local.recv(_CHUNK):
            continue
