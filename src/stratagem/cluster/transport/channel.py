"""``Channel``: how a task calls another."""

from __future__ import annotations

import socket
import ssl
import threading
import time

from stratagem.cluster.address import Address
from stratagem.cluster.transport.connection import Connection
from stratagem.cluster.transport.credentials import Credentials
from stratagem.cluster.transport.frames import Kind
from stratagem.cluster.transport.greeting import greet_server
from stratagem.cluster.transport.local_peer import check_same_user
from stratagem.cluster.transport.message import Message
from stratagem.cluster.transport.remote_error import exception_from_bytes
from stratagem.core.errors import DeadlineExceededError, UnauthenticatedError, UnavailableError

__all__ = ["Channel"]

_SECONDS_TO_CONNECT = 10.0
_MOST_IDLE = 64


class Channel:
    """Calls the methods of one task, from any number of threads.

    Every concurrent call has a connection to itself; connections are kept for later calls. A call is
    never repeated, so it runs at most once.

    Args:
        address: ``host:port`` of the task.
        credentials: What this task proves, and the other has to.
        task: What errors call the other task, such as ``/job:ps/task:0``.
    """

    def __init__(self, address: str, credentials: Credentials, task: str = "") -> None:
        self._address = Address.parse(address)
        self._credentials = credentials
        self._peer = f"{task} at {self._address}" if task else str(self._address)
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._busy: set[Connection] = set()
        self._closed = False

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
            Exception: What the method raised, as itself, with a note that holds the task's traceback.
        """
        deadline = time.monotonic() + timeout
        connection = self._take() or self._connect(deadline, timeout)
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

    def _connect(self, deadline: float, timeout: float) -> Connection:
        give_up = min(deadline, time.monotonic() + _SECONDS_TO_CONNECT)
        connected = None
        try:
            connected = socket.create_connection(
                (self._address.host, self._address.port), _remaining(give_up)
            )
            if self._credentials.tls is not None:
                connected.settimeout(_remaining(give_up))
                connected = self._credentials.tls.client_context.wrap_socket(
                    connected, server_hostname=self._address.host
                )
            connection = Connection(connected)
            greet_server(connection, self._credentials.secret, give_up)
            if not self._credentials.prove_something:
                check_same_user(connected)
        except UnauthenticatedError as error:
            _close(connected)
            raise UnauthenticatedError(f"{self._peer} was not trusted. {error}") from None
        except ssl.SSLError as error:
            _close(connected)
            raise UnauthenticatedError(
                f"{self._peer} was not trusted: no TLS connection ({error.reason or error}). The "
                "STRATAGEM_TLS_ variables must be set in both tasks, with certificates of the same "
                "authority that name the host."
            ) from None
        except TimeoutError:
            _close(connected)
            if give_up == deadline:
                raise DeadlineExceededError(
                    f"{self._peer} did not accept a connection within {timeout:g} s."
                ) from None
            raise UnavailableError(
                f"{self._peer} did not accept a connection within {_SECONDS_TO_CONNECT:g} s."
            ) from None
        except OSError as error:
            _close(connected)
            raise self._unavailable(error) from None
        except BaseException:
            _close(connected)
            raise
        with self._lock:
            if not self._closed:
                self._busy.add(connection)
                return connection
        connection.close()
        raise self._unavailable(ConnectionAbortedError())

    def _unavailable(self, error: OSError) -> UnavailableError:
        if self._closed:
            return UnavailableError(f"The channel to {self._peer} was closed.")
        reason = error.strerror.lower() if error.strerror else error
        return UnavailableError(
            f"{self._peer} cannot be reached: {reason}. It may have ended, or not have started yet."
        )


def _remaining(deadline: float) -> float:
    if (remaining := deadline - time.monotonic()) <= 0:
        raise TimeoutError
    return remaining


def _close(connected: socket.socket | None) -> None:
    if connected is not None:
        connected.close()
