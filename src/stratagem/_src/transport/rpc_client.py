"""``Caller``: how a task calls another."""

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

__all__ = ["Caller"]

_MOST_IDLE = 64


class Caller:
    """Calls the methods of one task, from any number of threads.

    Every concurrent call has a connection to itself; connections are kept for later calls. A call is
    never repeated, so it runs at most once.

    Args:
        address: ``host:port`` of the task.
        credentials: What this task proves, and the other has to.
        wanted: Who the other task must be.
        own: Who this task is.
        name: What errors call the other task, if not by its identity.
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
        # Reentrant: a signal handler may call in the middle of a call of the same thread.
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
        """Sends a message to a method of the task and returns its answer.

        Args:
            method: The name of the method.
            message: What it is given.
            timeout: How many seconds it may take in all.

        Raises:
            UnavailableError: If the task cannot be reached, or goes away before it answers.
            DeadlineExceededError: If it does not answer in time.
            UnauthenticatedError: If the tasks do not prove to each other that they belong together.
            ContextError: In a child that was forked since the caller was made.
            Exception: What the method raised, as itself, with a note that holds the task's traceback.
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
        """Closes every connection; calls under way raise ``UnavailableError``."""
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
            if not self._closed and len(self._idle) < _MOST_IDLE:
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
            return UnavailableError(f"The caller of {self._peer} was closed.")
        return unavailable(self._peer, error)
