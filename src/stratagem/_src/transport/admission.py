"""``Admission``: bounds how many connections are open at once to peers that may be anybody."""

from __future__ import annotations

import collections
import contextlib
import socket
import threading
import time
from collections.abc import Callable

__all__ = ["Admission", "Place"]

# An honest peer needs milliseconds for its part.
_GRACE_SECONDS = 1.0
_SECONDS_TO_LEAVE = 1.0


class Place:
    """The place of one connection, until it ``leave``s.

    Attributes:
        connected: The socket that is shut down when another connection takes the place.
        peer: The host at the other end.
        since: When the connection came.
        is_lost: Whether another connection takes the place.
    """

    def __init__(
        self, connected: socket.socket, peer: str, since: float, leave: Callable[[Place], None]
    ) -> None:
        self.is_lost = False
        self.connected = connected
        self.peer = peer
        self.since = since
        self._leave = leave

    def leave(self) -> bool:
        """Frees the place; returns whether the connection had kept it.

        A server that lets a peer in must leave first, and not let it in if this returns ``False``: such a
        connection is shut down, and a request that still gets through would be carried out without an
        answer, and sent again by who waits for one.
        """
        self._leave(self)
        return not self.is_lost

    def interrupt(self) -> None:
        """Wakes the thread that waits for the peer, with an error; from now on the place is lost."""
        self.is_lost = True
        with contextlib.suppress(OSError):
            # Not the one of SSLSocket, which another thread may be using.
            socket.socket.shutdown(self.connected, socket.SHUT_RDWR)


class Admission:
    """Lets a bounded number of connections in, such that slow ones cannot keep others out.

    When all places are taken, a new connection may take another's. A peer that holds more than the new
    one would loses its oldest, whatever its age; otherwise the oldest of all goes, if it has had a
    second. Without that second, many honest peers that connect at the same moment would push each other
    out, and none would get through.

    >>> import socket
    >>> from stratagem._src.transport.admission import Admission
    >>> admission = Admission(max_connections=1)
    >>> first, second = socket.socketpair()
    >>> place = admission.enter(first, "10.0.0.1")
    >>> admission.enter(second, "10.0.0.1") is None
    True
    >>> place.leave(), first.close(), second.close()
    (True, None, None)

    Args:
        max_connections: How many there may be at once.
        clock: Returns the time in seconds.
    """

    def __init__(self, max_connections: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_connections = max_connections
        self._clock = clock
        self._changed = threading.Condition()
        self._places: dict[Place, None] = {}  # in the order of their arrival

    def enter(self, connected: socket.socket, peer: str) -> Place | None:
        """Returns the place of a new connection, or ``None`` if it must be closed."""
        with self._changed:
            if not self._has_room():
                slow = self._replaceable(peer)
                if slow is None:
                    return None
                slow.interrupt()
                # Its thread leaves at once. To go on before that would let threads pile up.
                if not self._changed.wait_for(self._has_room, _SECONDS_TO_LEAVE):
                    return None
            place = Place(connected, peer, self._clock(), self._leave)
            self._places[place] = None
            return place

    def _has_room(self) -> bool:
        return len(self._places) < self._max_connections

    def _leave(self, place: Place) -> None:
        with self._changed:
            self._places.pop(place, None)
            self._changed.notify_all()

    def _replaceable(self, peer: str) -> Place | None:
        counts = collections.Counter(place.peer for place in self._places)
        greediest, held = counts.most_common(1)[0]
        if held > counts[peer] + 1:
            return next(place for place in self._places if place.peer == greediest)
        oldest = next(iter(self._places))
        return oldest if self._clock() - oldest.since >= _GRACE_SECONDS else None
