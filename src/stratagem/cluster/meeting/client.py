"""A worker's line to the meeting point."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from stratagem.cluster.address import Address
from stratagem.cluster.errors import RendezvousError
from stratagem.cluster.launch.frames import LARGEST_FRAME, FrameReader, next_body, to_json
from stratagem.cluster.launch.greeting import Seals, answer_challenge
from stratagem.cluster.meeting.board import values_of
from stratagem.cluster.meeting.worker_status import PeerView, WorkerStatus

__all__ = ["MeetingClient"]

_SECONDS_BETWEEN_TRIES = 0.1
_BEAT_SECONDS = 0.5
_CHUNK = 65536


class MeetingClient:
    """Says how this worker is, hears how the others are, and exchanges values with them.

    Args:
        address: Of the meeting point.
        worker: The number of this worker.
        num_workers: How many there are.
        secret: What they share.
        timeout: Seconds until the meeting point must answer.

    Raises:
        OSError: If it does not answer in time.
        RendezvousError: If it refuses this worker.
    """

    def __init__(
        self, address: Address, worker: int, num_workers: int, secret: str, timeout: float
    ) -> None:
        self._changed = threading.Condition()
        self._views = [PeerView() for _ in range(num_workers)]
        self._start: dict[str, Any] | None = None
        self._exchanged: dict[str, list[Any]] = {}
        self._lost = False
        self._status = WorkerStatus()
        self._sending = threading.Lock()
        self._closed = threading.Event()
        self._socket, self._seals = _connect(address, worker, num_workers, secret, timeout)
        self._frames = FrameReader(LARGEST_FRAME)
        for target in (self._read, self._beat):
            threading.Thread(target=target, name="workers-meeting", daemon=True).start()

    @property
    def start(self) -> dict[str, Any] | None:
        """What all workers were told when the last one came; ``None`` before."""
        return self._start

    @property
    def is_lost(self) -> bool:
        """Whether the meeting point is gone."""
        return self._lost

    def views(self) -> list[PeerView]:
        """Returns what is known of every worker."""
        with self._changed:
            return list(self._views)

    def set_status(self, status: WorkerStatus, *, tell_now: bool = False) -> None:
        """Sets what the others are told of this worker, at the next beat or at once."""
        self._status = status
        if tell_now:
            self._tell_status()

    def put(self, key: str, value: Any) -> None:
        """Gives this worker's part of an exchange."""
        self._tell({"put": key, "value": value})

    def take(self, key: str, seconds: float) -> list[Any] | None:
        """Returns every worker's part of an exchange, or ``None`` if it is not complete in time."""
        with self._changed:
            self._changed.wait_for(lambda: key in self._exchanged or self._lost, seconds)
            return self._exchanged.pop(key, None)

    def wait_for_change(self, ready: Callable[[], bool], seconds: float) -> None:
        """Waits until ``ready`` after some message, for so many seconds at most."""
        with self._changed:
            self._changed.wait_for(ready, seconds)

    def leave(self, reason: str) -> None:
        """Says goodbye and closes the line."""
        self._tell({"leave": reason})
        self.close()

    def close(self) -> None:
        """Closes the line."""
        self._closed.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _tell_status(self) -> None:
        self._tell({"status": self._status.to_json()})

    def _tell(self, message: dict[str, Any]) -> None:
        with self._sending, contextlib.suppress(OSError):
            self._socket.sendall(self._seals.to_node_0.seal(message))

    def _beat(self) -> None:
        while not self._closed.wait(_BEAT_SECONDS):
            self._tell_status()

    def _read(self) -> None:
        with contextlib.suppress(OSError, RendezvousError):
            while data := self._socket.recv(_CHUNK):
                for body in self._frames.feed(data):
                    self._receive(self._seals.from_node_0.open(body))
        with self._changed:
            self._lost = True
            self._changed.notify_all()

    def _receive(self, message: dict[str, Any]) -> None:
        with self._changed:
            if "start" in message:
                self._start = message["start"]
            elif "peers" in message:
                self._views = [PeerView.from_json(view) for view in message["peers"]]
            elif "exchanged" in message:
                self._exchanged[message["exchanged"]] = values_of(message["runs"])
            self._changed.notify_all()


def _connect(
    address: Address, worker: int, num_workers: int, secret: str, timeout: float
) -> tuple[socket.socket, Seals]:
    deadline = time.monotonic() + timeout
    while True:
        try:
            return _try_to_connect(address, worker, num_workers, secret)
        except OSError:
            if time.monotonic() + _SECONDS_BETWEEN_TRIES > deadline:
                raise
        time.sleep(_SECONDS_BETWEEN_TRIES)


def _try_to_connect(
    address: Address, worker: int, num_workers: int, secret: str
) -> tuple[socket.socket, Seals]:
    connection = socket.create_connection((address.host, address.port), timeout=10.0)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        greeting = next_body(connection, LARGEST_FRAME)
        seals, answer = answer_challenge(secret, greeting, worker, num_workers)
        connection.sendall(answer)
        body = next_body(connection, LARGEST_FRAME)
        try:
            seals.from_node_0.open(body)
        except RendezvousError:
            reason = to_json(body).get("refused")
            raise RendezvousError(
                f"The leader at {address} refused this process: {reason}."
            ) from None
        connection.settimeout(None)
    except BaseException:
        connection.close()
        raise
    return connection, seals
