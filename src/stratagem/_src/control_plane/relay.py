"""``Relay``: JAX's way to its coordination service, through the meeting point.

The service trusts everybody who reaches it, and its clients end the process when their connection
breaks. So it listens on a private socket beside the meeting point, the client of each worker connects
to a private socket of that worker, and what they say goes through a protected connection. When that
breaks, the client just hears no more, and the error is ours to raise.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time

from stratagem._src.cluster.address import Address
from stratagem._src.control_plane.identities import MEETING, RELAY_ROLE
from stratagem._src.control_plane.private_socket import PrivateSocket
from stratagem._src.core.errors import StratagemError
from stratagem._src.process.background import Background
from stratagem._src.transport import Connection, Credentials, Identity, Kind, Message, connect

__all__ = ["Relay", "serve_relay"]

_log = logging.getLogger("stratagem")
_CHUNK = 65536
_SECONDS_TO_CONNECT = 10.0


class Relay:
    """Passes connections to a private socket of this process on to the service.

    Args:
        meeting: The address of the meeting point.
        credentials: What this process proves to it.
        worker: The number of this worker.
    """

    def __init__(self, meeting: Address, credentials: Credentials, worker: int) -> None:
        self._meeting = meeting
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
        """Where JAX's client should connect to."""
        return self._place.grpc_address

    def close(self) -> None:
        """Accepts nobody any more."""
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
            self._background.start(self._pass_on, client, name="relay")

    def _pass_on(self, client: socket.socket) -> None:
        deadline = time.monotonic() + _SECONDS_TO_CONNECT
        with client:
            try:
                service = connect(
                    self._meeting,
                    self._credentials,
                    own=self._identity,
                    wanted=MEETING,
                    deadline=deadline,
                )
            except StratagemError as error:
                _log.warning("JAX's coordination service cannot be reached: %s", error)
                _drain(client)
                return
            self._background.start(_to_local, service, client, name="relay")
            _from_local(client, service)


def serve_relay(connection: Connection, service: str) -> None:
    """Passes what a relay says on to the service, at the path of its socket, and back."""
    background = Background(f"{connection.peer}")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as local:
        local.connect(service)
        answers = background.start(_from_local, local, connection, name="relay")
        _to_local(connection, local)
        with contextlib.suppress(OSError):
            local.shutdown(socket.SHUT_RDWR)
        answers.join()


def _from_local(local: socket.socket, connection: Connection) -> None:
    """Passes on until the local end closes, which does not hear of it when the other end is lost."""
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
