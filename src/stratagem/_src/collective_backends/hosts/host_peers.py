"""``HostPeers``: the processes of other hosts that this one sends to and receives from, all at once.

One thread serves all of them, and not one for each: where processors compute, a hand-over between threads
costs more than a small array. The network sends and receives on its own while the thread adds. Large arrays
are sent by a second thread: on a fast network one cannot copy enough.
"""

from __future__ import annotations

import select
import threading
from collections.abc import Callable, Iterator, Mapping

from stratagem._src.collective_backends.hosts.turn_sender import (
    FlatArray,
    PeerLost,
    TurnSender,
    as_bytes,
)
from stratagem._src.process.fork import ProcessOwner
from stratagem._src.transport import BulkChannel, Connection

__all__ = ["HostPeers"]

_MIN_BYTES_FOR_THREAD = 4 * 1024 * 1024


class HostPeers:
    """The processes of other hosts that this one exchanges arrays with.

    Nothing here gives up by itself: a peer may compile or compute for long before it takes part. The
    heartbeats of the workers decide how long to wait, and interrupt.

    Args:
        connections: To the peers, by host, in the order in which they take turns. Closed by ``close``.
        names: What errors call the peers, by host.
    """

    def __init__(self, connections: Mapping[int, Connection], names: Mapping[int, str]) -> None:
        self._connections = connections
        self._names = names
        self._channels = {host: connection.as_bulk() for host, connection in connections.items()}
        self._sender = TurnSender(self._channels, names, self.interrupt)
        self._owner = ProcessOwner("the link between hosts")
        self._is_running = threading.Lock()

    def __iter__(self) -> Iterator[int]:
        return iter(self._channels)

    def __len__(self) -> int:
        return len(self._channels)

    def unacknowledged_seconds(self) -> dict[int, float]:
        """Returns for how long each host has acknowledged nothing of what it was sent."""
        return {
            host: connection.unacknowledged_seconds
            for host, connection in self._connections.items()
        }

    def interrupt(self) -> None:
        """Wakes ``run``, now or later, with an error; from any thread."""
        for connection in self._connections.values():
            connection.interrupt()

    def close(self) -> None:
        """Ends the connections."""
        self.interrupt()
        with (
            self._is_running
        ):  # a descriptor that is closed while it is polled may be another file's
            self._sender.close()
            for connection in self._connections.values():
                connection.close()

    def send(self, host: int, array: FlatArray, prepare: Callable[[], None] | None = None) -> None:
        """Queues an array to be sent; where arrays are encrypted, it is a record.

        Args:
            host: To which one.
            array: Not empty. It must not change before ``run`` returns.
            prepare: Fills it, when it is its turn, maybe in another thread.
        """
        self._sender.put(host, array, prepare)

    def receive(
        self, host: int, array: FlatArray, when_filled: Callable[[], None] = lambda: None
    ) -> None:
        """Queues an array, not empty, to be filled with the next one that a host sends.

        Args:
            host: Whose array it is.
            array: As large as that one.
            when_filled: Called then; it may queue more.
        """
        self._channels[host].expect(as_bytes(array), when_filled)

    def run(self, num_bytes: int) -> None:
        """Sends and receives until nothing is queued.

        Args:
            num_bytes: How much that is, about.

        Raises:
            PeerLost: If a connection breaks, or is interrupted.
        """
        self._owner.check()
        with self._is_running:
            if num_bytes >= _MIN_BYTES_FOR_THREAD:
                self._run_with_thread()
                return
            while not self._sender.has_sent or self._is_expecting():
                has_sent = self._sender.send()
                if not self._receive() and not has_sent:
                    self._wait(self._sender.channel if not self._sender.has_sent else None)

    def _run_with_thread(self) -> None:
        self._sender.begin()
        try:
            while self._is_expecting():
                if not self._receive():
                    self._wait()
        except BaseException as error:
            self.interrupt()
            cause = self._sender.end()
            # What could not be sent says more than that the connection was then closed.
            if isinstance(error, PeerLost) and cause is not None:
                raise cause from error
            raise
        if (cause := self._sender.end()) is not None:
            raise cause

    def _is_expecting(self) -> bool:
        return not all(channel.has_filled for channel in self._channels.values())

    def _receive(self) -> bool:
        has_received = False
        for host, channel in self._channels.items():
            try:
                has_received = channel.receive() or has_received
            except OSError as error:
                raise PeerLost(f"{self._names[host]}: {error}") from error
        return has_received

    def _wait(self, sending: BulkChannel | None = None) -> None:
        """Waits for what is expected, and for room to send to one of the peers."""
        awaited = select.poll()
        for channel in self._channels.values():
            # One that is done may be closed by its peer: with it every poll would return at once.
            events = select.POLLOUT if channel is sending else 0
            if not channel.has_filled:
                channel.prepare_to_wait()
                events |= select.POLLIN
            if events:
                awaited.register(channel, events)
        awaited.poll()
