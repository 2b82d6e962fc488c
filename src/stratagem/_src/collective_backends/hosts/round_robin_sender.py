"""``RoundRobinSender``: sends to the peers on other hosts in turn.

It sends a little to one peer, then to the next, in a different order on each host. So every host receives
from one other at a time, and equally much from each. If the kernel got all data at once, the connections
would compete for the links: with BBR congestion control some get half the bandwidth of others, and a host
that waits for the slowest leaves its own link idle.
"""

from __future__ import annotations

import itertools
import queue
import select
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from stratagem._src.process.background import Background
from stratagem._src.transport import BulkChannel

__all__ = ["FlatArray", "PeerLost", "RoundRobinSender", "as_bytes"]

FlatArray: TypeAlias = np.ndarray[Any, Any]

_TURN_BYTES = 256 * 1024
_MAX_UNSENT_BYTES = 2 * _TURN_BYTES
"""What one peer gets before the next one, and how much of it the kernel buffers unsent: enough to keep
sending while the CPU is busy. With BBR, 25 MB between 3 hosts at 1 Gbit/s take 1.04 to 1.06 times the wire
time; with 1 MiB buffered 1.06 to 1.10, and 1.09 to 1.15 without a limit; with CUBIC always 1.05."""


class PeerLost(OSError):
    """The connection to a peer broke, or was interrupted."""


class RoundRobinSender:
    """Sends to peers, in the thread that receives or in a background thread.

    Args:
        channels: The channels to the peers by host, in round-robin order.
        names: The names of the peers in errors, by host.
        interrupt: Makes the thread that receives from the peers fail with an error.
    """

    def __init__(
        self,
        channels: Mapping[int, BulkChannel],
        names: Mapping[int, str],
        interrupt: Callable[[], None],
    ) -> None:
        if len(channels) > 1:
            for channel in channels.values():
                channel.limit_unsent(_MAX_UNSENT_BYTES)
        self._channels = channels
        self._names = names
        self._interrupt = interrupt
        self._waiting: dict[int, deque[tuple[FlatArray, Callable[[], None] | None]]] = {
            host: deque() for host in channels
        }
        self._order = itertools.cycle(channels)
        self._current = next(self._order)
        self._has_news = threading.Event()
        self._is_complete = False
        self._error: BaseException | None = None
        self._jobs: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[None] = queue.SimpleQueue()
        Background("the link between hosts").start(self._serve, name="send to other hosts")

    @property
    def channel(self) -> BulkChannel:
        """The channel whose turn it is."""
        return self._channels[self._current]

    @property
    def has_sent(self) -> bool:
        """Whether the kernel has accepted all queued data."""
        return self.channel.has_sent and not any(self._waiting.values())

    def put(self, host: int, array: FlatArray, prepare: Callable[[], None] | None = None) -> None:
        """Queues a non-empty array, and the function that fills it just before it is sent."""
        self._waiting[host].append((array, prepare))
        self._has_news.set()

    def send(self) -> bool:
        """Sends what can be sent without waiting, and returns whether anything was sent.

        Raises:
            PeerLost: If a connection breaks, or is interrupted.
        """
        if self.channel.has_sent and any(self._waiting.values()):
            self._begin_turn()
        try:
            return self.channel.send()
        except OSError as error:
            raise PeerLost(f"{self._names[self._current]}: {error}") from error

    def begin(self) -> None:
        """Starts sending in the background, until ``end``."""
        self._is_complete = False
        self._jobs.put(True)

    def end(self) -> BaseException | None:
        """Waits until all queued data is sent or cannot be, and returns the error, if any."""
        self._is_complete = True
        self._has_news.set()
        self._done.get()
        return self._error

    def close(self) -> None:
        """Ends the background thread, which must not be sending."""
        self._jobs.put(False)

    def _begin_turn(self) -> None:
        self._current = next(host for host in self._order if self._waiting[host])
        waiting, num_bytes = self._waiting[self._current], 0
        while waiting and (not num_bytes or num_bytes + waiting[0][0].nbytes <= _TURN_BYTES):
            array, prepare = waiting.popleft()
            if prepare is not None:
                prepare()
            num_bytes += array.nbytes
            self.channel.put(as_bytes(array))

    def _serve(self) -> None:
        while self._jobs.get():
            try:
                self._send_all()
            except BaseException as error:
                self._error = error
                self._interrupt()
            self._done.put(None)

    def _send_all(self) -> None:
        while True:
            # Clears the event before it reads the state: whatever changes later wakes the wait below.
            self._has_news.clear()
            is_complete = self._is_complete
            while not self.has_sent:
                if not self.send():
                    room = select.poll()
                    room.register(self.channel, select.POLLOUT)
                    room.poll()
            if is_complete:
                return
            self._has_news.wait()


def as_bytes(array: FlatArray) -> memoryview:
    """Returns the memory of an array."""
    return array.view(np.uint8).data
