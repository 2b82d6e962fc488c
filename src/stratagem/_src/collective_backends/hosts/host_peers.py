"""``HostPeers``: sends to and receives from the processes of other hosts, all at once.

One thread serves all peers: on a busy CPU a handover between threads costs more than sending a small array.
The kernel sends and receives while the thread adds. A second thread sends large arrays: on a fast network
one thread cannot copy enough.
"""

from __future__ import annotations

import select
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

from stratagem._src.collective_backends.hosts.round_robin_sender import (
    FlatArray,
    PeerLost,
    RoundRobinSender,
    as_bytes,
)
from stratagem._src.process.fork import ProcessOwner
from stratagem._src.transport import BulkChannel, Connection

__all__ = ["HostPeers"]

_MIN_BYTES_FOR_THREAD = 4 * 1024 * 1024


class HostPeers:
    """The processes of other hosts that this one sends arrays to and receives arrays from.

    Waits have no timeout of their own: a peer may compile or compute for a long time before it takes part.
    The heartbeats of the workers decide how long to wait, and interrupt.

    Args:
        connections: The connections to the peers by host, in round-robin order. ``close`` closes them.
        names: The names of the peers in errors, by host.
    """

    def __init__(self, connections: Mapping[int, Connection], names: Mapping[int, str]) -> None:
        self._connections = connections
        self._names = names
        self._channels = {host: connection.as_bulk() for host, connection in connections.items()}
        self._sender = RoundRobinSender(self._channels, names, self.interrupt)
        self._owner = ProcessOwner("the link between hosts")
        self._is_running = threading.Lock()

    def __iter__(self) -> Iterator[int]:
        return iter(self._channels)

    def __len__(self) -> int:
        return len(self._channels)

    def unacknowledged_seconds(self) -> dict[int, float]:
        """Returns for how long each host has not acknowledged sent data (TCP)."""
        return {
            host: connection.unacknowledged_seconds
            for host, connection in self._connections.items()
        }

    def interrupt(self) -> None:
        """Makes ``run`` fail with an error, now or later; from any thread."""
        for connection in self._connections.values():
            connection.interrupt()

    def close(self) -> None:
        """Closes the connections."""
        self.interrupt()
        # Not while `run` polls: the descriptor of a closed file may be reused for another one.
        with self._is_running:
            self._sender.close()
            for connection in self._connections.values():
                connection.close()

    def send(self, host: int, array: FlatArray, prepare: Callable[[], None] | None = None) -> None:
        """Queues an array to send; with encryption, each array is one record.

        Args:
            host: The receiver.
            array: Not empty. It must not change before ``run`` returns.
            prepare: Fills the array just before it is sent, possibly in another thread.
        """
        self._sender.put(host, array, prepare)

    def receive(
        self, host: int, array: FlatArray, when_filled: Callable[[], None] = lambda: None
    ) -> None:
        """Queues a non-empty array to fill with the next one that a host sends.

        Args:
            host: The sender.
            array: An array of the same size.
            when_filled: Called when the array is filled; it may queue more.
        """
        self._channels[host].expect(as_bytes(array), when_filled)

    def run(self, num_bytes: int) -> None:
        """Sends and receives until the queues are empty.

        Args:
            num_bytes: The approximate number of bytes queued.

        Raises:
            PeerLost: If a connection breaks, or is interrupted.
        """
        self._owner.check()
        with self._is_running:
            if num_bytes >= _MIN_BYTES_FOR_THREAD:
                self._run_with_thread()
                return
            while not self._sender.has_sent or self._is_expecting():
                # It waits only when neither direction made progress: data may arrive while it sends, and
                # the other host stops sending when this one does not read.
                has_sent = self._sender.send()
                if not self._receive() and not has_sent:
                    self._wait(self._sender.channel if not self._sender.has_sent else None)

    def swap(self, outgoing: Mapping[int, Sequence[FlatArray]]) -> None:
        """Sends a few small arrays to each peer, and fills the arrays that are queued.

        Does the same as ``send`` and ``run``, with less Python: for small arrays that is what takes time.

        Args:
            outgoing: Arrays that are not empty, by host; together not larger than a send buffer.

        Raises:
            PeerLost: If a connection breaks, or is interrupted.
        """
        self._owner.check()
        with self._is_running:
            for host, channel in self._channels.items():
                for array in outgoing[host]:
                    channel.put(as_bytes(array))
            while unfinished := [item for item in self._channels.items() if not self._serve(*item)]:
                awaited = select.poll()
                for _, channel in unfinished:
                    events = 0 if channel.has_sent else select.POLLOUT
                    if not channel.has_filled:
                        channel.prepare_to_wait()
                        events |= select.POLLIN
                    awaited.register(channel, events)
                awaited.poll()

    def _serve(self, host: int, channel: BulkChannel) -> bool:
        """Sends and receives without waiting; returns whether all is sent and received."""
        try:
            while not channel.has_sent and channel.send():
                pass
            while channel.receive():
                pass
        except OSError as error:
            raise PeerLost(f"{self._names[host]}: {error}") from error
        return channel.has_sent and channel.has_filled

    def _run_with_thread(self) -> None:
        self._sender.begin()
        try:
            while self._is_expecting():
                if not self._receive():
                    self._wait()
        except BaseException as error:
            self.interrupt()
            cause = self._sender.end()
            # The error of the sender is the cause; the receiver only sees the closed connection.
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
        """Waits for expected data, and for room to send to one of the peers."""
        awaited = select.poll()
        for channel in self._channels.values():
            # A finished channel may be closed by its peer: polling it would return at once every time.
            events = select.POLLOUT if channel is sending else 0
            if not channel.has_filled:
                channel.prepare_to_wait()
                events |= select.POLLIN
            if events:
                awaited.register(channel, events)
        awaited.poll()
