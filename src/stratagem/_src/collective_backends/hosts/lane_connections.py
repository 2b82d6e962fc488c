"""``LaneConnector``: connects the processes of a lane to each other."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Self

from stratagem._src.cluster.address import Address
from stratagem._src.core.errors import DeadlineExceededError, UnavailableError
from stratagem._src.core.waiting_notice import WaitingNotice
from stratagem._src.transport import (
    Connection,
    Credentials,
    Identity,
    Kind,
    Listener,
    Message,
    connect,
)

__all__ = ["LaneConnector", "UnreachableError"]

_ROLE = "exchange"
_CONNECT_SECONDS = 30.0
_ATTEMPT_SECONDS = 5.0
_POLL_SECONDS = 0.5
_log = logging.getLogger("stratagem")


class UnreachableError(UnavailableError):
    """Two processes that both listen cannot connect: the message names them."""


class LaneConnector:
    """Listens for the processes of higher rank in a lane, and connects to those of lower rank.

    Args:
        rank: The rank of this process.
        host: The address to listen on.
        credentials: What the processes authenticate each other with.
    """

    def __init__(self, rank: int, host: str, credentials: Credentials) -> None:
        self._rank = rank
        self._credentials = credentials
        # Not a SimpleQueue, whose get() can miss its timeout; see core/wakeup.py.
        self._arrived: queue.Queue[Connection] = queue.Queue()
        self._closed = threading.Event()
        self._connections: dict[int, Connection] = {}
        address = str(Address(host, 0))
        self._listener = Listener(address, credentials, Identity(_ROLE, rank), self._accept)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> str:
        """Starts to listen, and returns the address.

        Raises:
            UnavailableError: If the address is not one of this host.
        """
        self._listener.start()
        return self._listener.address

    def connect(
        self,
        addresses: Mapping[int, str],
        names: Sequence[str],
        *,
        is_encrypted: bool,
        timeout: float,
    ) -> dict[int, Connection]:
        """Returns connections to the other processes of the lane, by rank.

        Args:
            addresses: The addresses of these processes, by rank.
            names: The names of all processes in errors.
            is_encrypted: Whether to keep encrypting after the handshake.
            timeout: Seconds until all must be connected; at most 30.

        Raises:
            UnreachableError: If one cannot be reached or does not connect in time.
            UnauthenticatedError: If one does not know the secret.
        """
        # All processes are listening by now: one that cannot be reached is behind a firewall.
        deadline = time.monotonic() + min(timeout, _CONNECT_SECONDS)
        notice = WaitingNotice()
        for other, address in addresses.items():
            if other < self._rank:
                self._connections[other] = self._reach(other, address, names, deadline, notice)
        while missing := addresses.keys() - self._connections.keys():
            waits_for = ", ".join(names[other] for other in sorted(missing))
            try:
                connection = self._arrived.get(timeout=_POLL_SECONDS)
            except queue.Empty:
                if notice.is_due():
                    _log.warning(
                        "%s is waiting for %s to connect to %s (%.0f s)",
                        names[self._rank],
                        waits_for,
                        self._listener.address,
                        notice.seconds,
                    )
                if time.monotonic() > deadline:
                    raise UnreachableError(
                        f"{waits_for} did not connect to {names[self._rank]} at {self._listener.address}"
                    ) from None
                continue
            assert connection.peer is not None
            self._connections[connection.peer.index] = connection
        for connection in self._connections.values():
            if not is_encrypted:
                connection.stop_encrypting()
        return dict(self._connections)

    def _reach(
        self,
        other: int,
        address: str,
        names: Sequence[str],
        deadline: float,
        notice: WaitingNotice,
    ) -> Connection:
        while True:
            try:
                return self._attempt(other, address, names[other], deadline)
            except (UnavailableError, DeadlineExceededError) as error:
                if time.monotonic() + _POLL_SECONDS > deadline:
                    raise UnreachableError(
                        f"{names[self._rank]} cannot connect to {names[other]} at {address}"
                    ) from error
                if notice.is_due():
                    _log.warning(
                        "%s tries to connect to %s at %s (%.0f s): %s",
                        names[self._rank],
                        names[other],
                        address,
                        notice.seconds,
                        error,
                    )
            time.sleep(_POLL_SECONDS)

    def _attempt(self, other: int, address: str, name: str, deadline: float) -> Connection:
        deadline = min(deadline, time.monotonic() + _ATTEMPT_SECONDS)
        connection = connect(
            address,
            self._credentials,
            own=Identity(_ROLE, self._rank),
            wanted=Identity(_ROLE, other),
            deadline=deadline,
            name=name,
        )
        try:
            # The peer may have completed a handshake that timed out here; then another attempt follows.
            # This message tells the peer which connection is used.
            connection.send(Kind.EVENT, "", Message(), deadline)
        except OSError as error:
            connection.close()
            raise UnavailableError(f"{name} at {address} closed the connection: {error}.") from None
        return connection

    def close(self) -> None:
        """Closes the connections, and stops listening."""
        self._closed.set()
        self._listener.shutdown()
        for connection in self._connections.values():
            connection.close()

    def _accept(self, connection: Connection) -> None:
        connection.receive(time.monotonic() + _CONNECT_SECONDS)  # see _attempt
        self._arrived.put(connection)
        self._closed.wait()  # the listener closes a connection when this returns
