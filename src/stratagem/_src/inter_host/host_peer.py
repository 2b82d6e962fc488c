"""``HostPeer``: a connection to another host, which sends in the background while a thread receives."""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np

from stratagem._src.core.background import Background
from stratagem._src.transport import Connection

__all__ = ["FlatArray", "HostPeer", "PeerLost"]

FlatArray: TypeAlias = np.ndarray[Any, Any]

_NO_DEADLINE_SECONDS = 7 * 24 * 3600.0
"""How long to wait for a peer is decided by the heartbeats of the workers, which interrupt it."""

_FLUSH = np.empty(0, np.uint8)


class PeerLost(OSError):
    """The connection to a peer broke, or was interrupted."""


class HostPeer:
    """The process of another host that this one exchanges arrays with.

    Nothing here gives up by itself: the peer may compile or compute for long before it takes part.

    Args:
        connection: To the peer, which closes it.
        name: What errors call it.
        background: Owns the thread that sends.
    """

    def __init__(self, connection: Connection, name: str, background: Background) -> None:
        self._connection = connection
        self._name = name
        self._queue: queue.SimpleQueue[FlatArray | None] = queue.SimpleQueue()
        self._flushed: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._error: OSError | None = None
        background.start(self._send_queued, name=f"send to {name}")

    @property
    def unacknowledged_seconds(self) -> float:
        """For how long its host has acknowledged nothing of what it was sent."""
        return self._connection.unacknowledged_seconds

    def interrupt(self) -> None:
        """Wakes what sends or receives, with an error; from any thread."""
        self._connection.interrupt()

    def close(self) -> None:
        """Ends the connection and the thread."""
        self.interrupt()
        self._queue.put(None)
        self._connection.close()

    def send(self, record: bytes) -> None:
        """Sends a small record at once; nothing may be queued."""
        with self._named():
            self._connection.send_record(record, _no_deadline())

    def receive(self) -> bytes:
        """Returns the next small record."""
        with self._named():
            return self._connection.receive_record(_no_deadline())

    def put(self, array: FlatArray) -> None:
        """Queues an array to be sent, of at most a mebibyte; it must not change before ``flush``."""
        self._queue.put(array)

    def receive_into(self, array: FlatArray) -> None:
        """Fills an array with the one that the peer has put."""
        with self._named():
            self._connection.receive_record_into(as_bytes(array), _no_deadline())

    def flush(self) -> None:
        """Waits until everything that was queued is sent."""
        self._queue.put(_FLUSH)
        self._flushed.get()
        with self._named():
            if self._error is not None:
                raise self._error

    def _send_queued(self) -> None:
        while (array := self._queue.get()) is not None:
            if array is _FLUSH:
                self._flushed.put(None)
            elif self._error is None:
                try:
                    self._connection.send_record(as_bytes(array), _no_deadline())
                except OSError as error:
                    self._error = error
                    self.interrupt()

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            # What could not be sent says more than that the connection was then closed.
            raise PeerLost(f"{self._name}: {self._error or error}") from error


def as_bytes(array: FlatArray) -> memoryview:
    """Returns the memory of an array."""
    return array.view(np.uint8).data


def _no_deadline() -> float:
    return time.monotonic() + _NO_DEADLINE_SECONDS
