"""``TransportClient``: the client side of RPC between tasks."""

from __future__ import annotations

import threading
import time

from stratagem._src.cluster.address import Address
from stratagem._src.core.errors import DeadlineExceededError, UnavailableError
from stratagem._src.process.fork import ProcessOwner
from stratagem._src.transport.connecting import connect, unavailable
from stratagem._src.transport.connection import Connection
from stratagem._src.transport.credentials import Credentials
from stratagem._src.transport.identity import Identity
from stratagem._src.transport.message import Message
from stratagem._src.transport.remote_error import exception_from_bytes
from stratagem._src.transport.wire_format import Kind

__all__ = ["TransportClient"]

_MAX_IDLE_CONNECTIONS = 64


class TransportClient:
    """Calls the methods of one task, from any number of threads.

    Every concurrent call uses its own connection from a pool. A call is never retried, so it runs at most
    once.

    Args:
        address: ``host:port`` of the task.
        credentials: The credentials that both tasks must have.
        wanted: The identity that the other task must have.
        own: The identity of this task.
        name: The name of the other task in errors; default: its identity.
    """

    def __init__(
        self,
        address: str,
        credentials: Credentials,
        *,
        wanted: Identity,
        own: Identity,
        name: str = "",
    ) -> None:
        self._address = Address.parse(address)
        self._credentials = credentials
        self._wanted = wanted
        self._own = own
        self._name = name
        self._peer = f"{name or wanted} at {self._address}"
        # Reentrant: a signal handler may make a call while the same thread is in one.
        self._lock = threading.RLock()
        self._idle: list[Connection] = []
        self._busy: set[Connection] = set()
        self._closed = False
        self._owner = ProcessOwner(f"the connection to {self._peer}")

    @property
    def address(self) -> str:
        """``host:port`` of the task."""
        return str(self._address)

    def call(self, method: str, message: Message, *, timeout: float) -> Message:
        """Calls a method of the task and returns its response.

        Args:
            method: The name of the method.
            message: The request.
            timeout: Seconds that the call may take in total.

        Raises:
            UnavailableError: If the task cannot be reached, or disconnects before it responds.
            DeadlineExceededError: If it does not respond in time.
            UnauthenticatedError: If the tasks do not authenticate each other.
            ContextError: In a child that was forked since the client was created.
            Exception: The exception that the method raised, with a note that contains the task's traceback.
        """
        self._owner.check()
        deadline = time.monotonic() + timeout
        connection = self._take() or self._connect(deadline)
        try:
            connection.send(Kind.REQUEST, method, message, deadline)
            kind, _, answer = connection.receive(deadline)
        except TimeoutError:
            self._drop(connection)
            raise DeadlineExceededError(
                f"{self._peer} did not answer {method!r} within {timeout:g} s."
            ) from None
        except OSError as error:
            self._drop(connection)
            raise self._unavailable(error) from None
        except BaseException:  # an interrupt, or a message that cannot be sent
            self._drop(connection)
            raise
        self._give_back(connection)
        if kind == Kind.ERROR:
            raise exception_from_bytes(answer.body, self._peer)
        return answer

    def close(self) -> None:
        """Closes every connection; pending calls raise ``UnavailableError``."""
        if not self._owner.is_here:
            return
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            busy = list(self._busy)
        for connection in idle:
            connection.close()
        for connection in busy:
            connection.interrupt()

    def _take(self) -> Connection | None:
        while True:
            with self._lock:
                if self._closed or not self._idle:
                    return None
                connection = self._idle.pop()
                self._busy.add(connection)
            if connection.is_idle():
                return connection
            self._drop(connection)

    def _give_back(self, connection: Connection) -> None:
        with self._lock:
            if not self._closed and len(self._idle) < _MAX_IDLE_CONNECTIONS:
                self._busy.discard(connection)
                self._idle.append(connection)
                return
        self._drop(connection)

    def _drop(self, connection: Connection) -> None:
        with self._lock:
            self._busy.discard(connection)
        connection.close()

    def _connect(self, deadline: float) -> Connection:
        if not self._closed:
            connection = connect(
                self._address,
                self._credentials,
                own=self._own,
                wanted=self._wanted,
                deadline=deadline,
                name=self._name,
            )
            with self._lock:
                if not self._closed:
                    self._busy.add(connection)
                    return connection
            connection.close()
        raise self._unavailable(ConnectionAbortedError())

    def _unavailable(self, error: OSError) -> UnavailableError:
        if self._closed:
            return UnavailableError(f"The client of {self._peer} was closed.")
        return unavailable(self._peer, error)
