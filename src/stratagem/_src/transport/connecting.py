"""``connect``: from an address to a connection with the task that is wanted there."""

from __future__ import annotations

import socket
import ssl
import time

from stratagem._src.cluster.address import Address
from stratagem._src.core.errors import (
    DeadlineExceededError,
    StratagemError,
    UnauthenticatedError,
    UnavailableError,
)
from stratagem._src.transport.byte_stream import ByteStream, TLSByteStream
from stratagem._src.transport.connection import Connection
from stratagem._src.transport.credentials import Credentials
from stratagem._src.transport.handshake import greet_server
from stratagem._src.transport.identity import Identity

__all__ = ["connect", "unavailable"]

_SECONDS_TO_CONNECT = 10.0
# How long to try again where new connections are turned away, and how often.
_CROWD_TIMEOUT = 4.0
_FIRST_PAUSE = 0.01
_LONGEST_PAUSE = 0.1


def connect(
    address: str | Address,
    credentials: Credentials,
    *,
    own: Identity,
    wanted: Identity,
    deadline: float,
    name: str = "",
) -> Connection:
    """Connects to a task, and returns when both have proved themselves.

    Args:
        address: ``host:port`` of the task.
        credentials: What this task proves, and the other has to.
        own: Who this task is.
        wanted: Who the other must be.
        deadline: When to give up, on the monotonic clock; ten seconds are the most.
        name: What errors call the other task, if not by its identity.

    Raises:
        UnavailableError: If nobody is there, or does not answer within ten seconds.
        DeadlineExceededError: If the deadline comes first.
        UnauthenticatedError: If somebody else is there, or does not trust this task.
        PermissionDeniedError: If it is on another machine and there is nothing to prove.
    """
    where = Address.parse(address) if isinstance(address, str) else address
    peer = f"{name or wanted} at {where}"
    credentials = credentials.for_host(where.host)
    begun = time.monotonic()
    give_up = min(deadline, begun + _SECONDS_TO_CONNECT)
    pause = _FIRST_PAUSE
    while True:
        try:
            return _connect_once(where, credentials, own, wanted, give_up)
        except UnauthenticatedError as error:
            raise UnauthenticatedError(f"{peer} was not trusted. {error}") from None
        except OSError as error:
            # A task that has many unauthenticated peers turns new ones away. Who gave up at once would take
            # it for lost, and anybody who reaches its port could bring that about.
            patience = min(give_up, begun + _CROWD_TIMEOUT) - time.monotonic()
            if not _was_turned_away(error) or patience < pause:
                raise _explained(error, peer, begun, give_up, deadline) from None
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


def _connect_once(
    where: Address, credentials: Credentials, own: Identity, wanted: Identity, give_up: float
) -> Connection:
    connected = socket.create_connection((where.host, where.port), _remaining(give_up))
    try:
        if credentials.tls is None:
            stream = ByteStream(connected)
        else:
            connected.setblocking(False)
            secured = credentials.tls.client_context.wrap_socket(
                connected, server_hostname=where.host, do_handshake_on_connect=False
            )
            connected = secured
            stream = TLSByteStream(secured, give_up)
        connection = Connection(stream)
        greet_server(connection, credentials, own, wanted, give_up)
    except BaseException:
        connected.close()
        raise
    return connection


def _was_turned_away(error: OSError) -> bool:
    """Returns whether a task closed the connection before it had let this one in, and is still there."""
    if isinstance(error, ConnectionRefusedError):
        return False
    return isinstance(error, (ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError))


def _explained(
    error: OSError, peer: str, begun: float, give_up: float, deadline: float
) -> StratagemError:
    if isinstance(error, ssl.SSLError):
        return UnauthenticatedError(
            f"{peer} was not trusted: no TLS connection ({error.reason or error}). The "
            "STRATAGEM_TLS_ variables must be set in both tasks, with certificates of the same "
            "authority that name the host."
        )
    if isinstance(error, TimeoutError):
        kind = DeadlineExceededError if give_up == deadline else UnavailableError
        return kind(f"{peer} did not accept a connection within {give_up - begun:.3g} s.")
    return unavailable(peer, error)


def unavailable(peer: str, error: OSError) -> UnavailableError:
    """Returns the error that a task cannot be reached."""
    reason = error.strerror.lower() if error.strerror else error
    return UnavailableError(
        f"{peer} cannot be reached: {reason}. It may have ended, or not have started yet."
    )


def _remaining(deadline: float) -> float:
    if (remaining := deadline - time.monotonic()) <= 0:
        raise TimeoutError
    return remaining
