"""``ConnectionLimiter``: bounds the number of concurrent connections of unauthenticated peers."""

from __future__ import annotations

import collections
import contextlib
import socket
import threading
import time
from collections.abc import Callable

__all__ = ["ConnectionLimiter", "ConnectionSlot"]

# An honest peer completes the handshake in milliseconds.
_GRACE_SECONDS = 1.0
_RELEASE_TIMEOUT = 1.0


class ConnectionSlot:
    """The slot of one connection, until it is released.

    Attributes:
        connected: The socket, which is shut down when another connection takes the slot.
        peer: The host at the other end.
        since: When the connection was accepted.
        is_lost: Whether another connection takes the slot.
    """

    def __init__(
        self,
        connected: socket.socket,
        peer: str,
        since: float,
        release: Callable[[ConnectionSlot], None],
    ) -> None:
        self.is_lost = False
        self.connected = connected
        self.peer = peer
        self.since = since
        self._release = release

    def release(self) -> bool:
        """Frees the slot; returns whether the connection still had it.

        A server must release the slot before it admits the peer, and must not admit it if this returns
        ``False``: that connection is being shut down. A request that still got through would be executed
        without a response, and its sender would send it again.
        """
        self._release(self)
        return not self.is_lost

    def interrupt(self) -> None:
        """Takes the slot away: makes pending operations on the socket fail."""
        self.is_lost = True
        with contextlib.suppress(OSError):
            # Not SSLSocket.shutdown: another thread may be using the SSL object.
            socket.socket.shutdown(self.connected, socket.SHUT_RDWR)


class ConnectionLimiter:
    """Admits a bounded number of connections, such that slow ones cannot lock others out.

    When all slots are taken, a new connection may evict another. If one host holds more slots than the new
    host would, it loses its oldest connection, whatever its age. Otherwise the oldest of all is evicted, if
    it is at least a second old. Without that second, many honest peers that connect at the same moment
    would evict each other, and none would succeed.

    >>> import socket
    >>> from stratagem._src.transport.connection_limiter import ConnectionLimiter
    >>> limiter = ConnectionLimiter(max_connections=1)
    >>> first, second = socket.socketpair()
    >>> slot = limiter.acquire(first, "10.0.0.1")
    >>> limiter.acquire(second, "10.0.0.1") is None
    True
    >>> slot.release(), first.close(), second.close()
    (True, None, None)

    Args:
        max_connections: The maximum number of concurrent connections.
        clock: Returns the time in seconds.
    """

    def __init__(self, max_connections: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_connections = max_connections
        self._clock = clock
        self._changed = threading.Condition()
        self._slots: dict[ConnectionSlot, None] = {}  # in order of arrival

    def acquire(self, connected: socket.socket, peer: str) -> ConnectionSlot | None:
        """Returns the slot of a new connection, or ``None`` if it must be closed."""
        with self._changed:
            if not self._has_room():
                slow = self._evictable(peer)
                if slow is None:
                    return None
                slow.interrupt()
                # Its thread releases the slot at once. Without waiting for that, threads would pile up.
                if not self._changed.wait_for(self._has_room, _RELEASE_TIMEOUT):
                    return None
            slot = ConnectionSlot(connected, peer, self._clock(), self._release)
            self._slots[slot] = None
            return slot

    def _has_room(self) -> bool:
        return len(self._slots) < self._max_connections

    def _release(self, slot: ConnectionSlot) -> None:
        with self._changed:
            self._slots.pop(slot, None)
            self._changed.notify_all()

    def _evictable(self, peer: str) -> ConnectionSlot | None:
        counts = collections.Counter(slot.peer for slot in self._slots)
        greediest, held = counts.most_common(1)[0]
        if held > counts[peer] + 1:
            return next(slot for slot in self._slots if slot.peer == greediest)
        oldest = next(iter(self._slots))
        return oldest if self._clock() - oldest.since >= _GRACE_SECONDS else None
