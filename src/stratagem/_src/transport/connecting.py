"""``connect``: opens an authenticated connection to a task."""

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
from stratagem._src.transport.handshake import client_handshake
from stratagem._src.transport.identity import Identity

__all__ = ["connect", "unavailable"]

_CONNECT_TIMEOUT = 10.0
# How long, and how often, to retry when an overloaded server rejects new connections.
_OVERLOAD_TIMEOUT = 4.0
_MIN_BACKOFF = 0.01
_MAX_BACKOFF = 0.1


def connect(
    address: str | Address,
    credentials: Credentials,
    *,
    own: Identity,
    wanted: Identity,
    deadline: float,
    name: str = "",
) -> Connection:
    """Connects to a task, and returns after mutual authentication.

    Args:
        address: ``host:port`` of the task.
        credentials: The credentials that both tasks must have.
        own: The identity of this task.
        wanted: The identity that the other task must have.
        deadline: When to give up, on the monotonic clock; at most ten seconds from now.
        name: The name of the other task in errors; default: its identity.

    Raises:
        UnavailableError: If the task is not running, or does not respond within ten seconds.
        DeadlineExceededError: If the deadline comes first.
        UnauthenticatedError: If the two do not authenticate each other, or another task listens there.
        PermissionDeniedError: If it is on another machine and there are no credentials.
    """
    where = Address.parse(address) if isinstance(address, str) else address
    peer = f"{name or wanted} at {where}"
    credentials = credentials.for_host(where.host)
    begun = time.monotonic()
    give_up = min(deadline, begun + _CONNECT_TIMEOUT)
    backoff = _MIN_BACKOFF
    while True:
        try:
            return _connect_once(where, credentials, own, wanted, give_up)
        except UnauthenticatedError as error:
            raise UnauthenticatedError(f"{peer} was not trusted. {error}") from None
        except OSError as error:
            # A task with many unauthenticated connections rejects new ones. Without retries this task would
            # take it for lost, so anyone who reaches its port could fake its failure.
            remaining = min(give_up, begun + _OVERLOAD_TIMEOUT) - time.monotonic()
            if not _was_rejected(error) or remaining < backoff:
                raise _explained(error, peer, begun, give_up, deadline) from None
        time.sleep(backoff)
        backoff = min(2 * backoff, _MAX_BACKOFF)


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
        client_handshake(connection, credentials, own, wanted, give_up)
    except BaseException:
        connected.close()
        raise
    return connection


def _was_rejected(error: OSError) -> bool:
    """Returns whether a running task closed the connection during the handshake."""
    if isinstance(error, ConnectionRefusedError):
        return False
    return isinstance(error, (ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError))


def _explained(
    error: OSError, peer: str, begun: float, give_up: float, deadline: float
) -> StratagemError:
    if isinstance(error, ssl.SSLError):
        return UnauthenticatedError(
            f"{peer} was not trusted: the TLS handshake failed ({error.reason or error}). The "
            "STRATAGEM_TLS_ variables must be set in both tasks, with certificates of the same authority "
            "that name the host."
        )
    if isinstance(error, TimeoutError):
        kind = DeadlineExceededError if give_up == deadline else UnavailableError
        return kind(f"{peer} did not accept a connection within {give_up - begun:.3g} s.")
    return unavailable(peer, error)


def unavailable(peer: str, error: OSError) -> UnavailableError:
    """Returns the error for a task that cannot be reached."""
    reason = error.strerror.lower() if error.strerror else error
    return UnavailableError(
        f"{peer} cannot be reached: {reason}. It may have ended, or not have started yet."
    )


def _remaining(deadline: float) -> float:
    if (remaining := deadline - time.monotonic()) <= 0:
        raise TimeoutError
    return remaining
