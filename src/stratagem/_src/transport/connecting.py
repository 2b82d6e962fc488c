"""``connect``: from an address to a connection with the task that is wanted there."""

from __future__ import annotations

import socket
import ssl
import time

from stratagem._src.cluster.address import Address
from stratagem._src.core.errors import DeadlineExceededError, UnauthenticatedError, UnavailableError
from stratagem._src.transport.byte_stream import ByteStream, TLSByteStream
from stratagem._src.transport.connection import Connection
from stratagem._src.transport.credentials import Credentials
from stratagem._src.transport.handshake import greet_server
from stratagem._src.transport.identity import Identity

__all__ = ["connect", "unavailable"]

_SECONDS_TO_CONNECT = 10.0


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
    connected: socket.socket | None = None
    try:
        connected = socket.create_connection((where.host, where.port), _remaining(give_up))
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
    except BaseException as error:
        if connected is not None:
            connected.close()
        if isinstance(error, UnauthenticatedError):
            raise UnauthenticatedError(f"{peer} was not trusted. {error}") from None
        if isinstance(error, ssl.SSLError):
            raise UnauthenticatedError(
                f"{peer} was not trusted: no TLS connection ({error.reason or error}). The "
                "STRATAGEM_TLS_ variables must be set in both tasks, with certificates of the same "
                "authority that name the host."
            ) from None
        if isinstance(error, TimeoutError):
            kind = DeadlineExceededError if give_up == deadline else UnavailableError
            raise kind(
                f"{peer} did not accept a connection within {give_up - begun:.3g} s."
            ) from None
        if isinstance(error, OSError):
            raise unavailable(peer, error) from None
        raise
    return connection


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
