"""``DuplexStream``: a bidirectional stream of JSON objects with heartbeats; sending never blocks."""

from __future__ import annotations

import collections
import json
import threading
import time
from typing import Any

from stratagem._src.cluster.errors import RendezvousError
from stratagem._src.process.background import Background
from stratagem._src.transport import Connection, Kind, Message

__all__ = ["DuplexStream", "HeartbeatTimeout", "encode_message"]

_MAX_UNSENT = 4096
_SMALL_BYTES = 4096
_HEARTBEAT = b"{}"
_MAX_UNACKNOWLEDGED_SECONDS = 60.0


class HeartbeatTimeout(ConnectionError):
    """The peer has exceeded the heartbeat timeout: its host is off or hangs, or the network is down."""


def encode_message(message: dict[str, Any]) -> bytes:
    """Returns the wire encoding of a message."""
    return json.dumps(message).encode()


class DuplexStream:
    """A bidirectional stream of JSON objects.

    Sending never blocks on a peer that does not read: messages are queued, and a thread sends them. A peer
    whose queue grows too long is considered lost.

    Args:
        connection: The connection. The stream closes it.
        heartbeat_timeout: Seconds without a message or a heartbeat after which the peer is lost; ``None``
            waits as long as the connection exists.
    """

    def __init__(self, connection: Connection, heartbeat_timeout: float | None = None) -> None:
        self._connection = connection
        connection.set_user_timeout(_MAX_UNACKNOWLEDGED_SECONDS)
        self._heartbeat_timeout = heartbeat_timeout
        self._lock = threading.Lock()
        self._unsent: collections.deque[bytes] = collections.deque()
        self._all_sent = threading.Condition(self._lock)
        self._is_sending = False
        self._is_closed = False
        self._background = Background(
            f"the stream to {connection.peer}", on_failure=lambda _: self.interrupt()
        )

    @property
    def hosts(self) -> tuple[str, str]:
        """The local and the remote address."""
        return self._connection.own_host, self._connection.peer_host

    def send(self, message: dict[str, Any]) -> None:
        """Sends a message without blocking. If the peer is lost, ``receive`` raises."""
        self.send_encoded(encode_message(message))

    def send_encoded(self, body: bytes) -> None:
        """Sends a message that ``encode_message`` has encoded, e.g. once for several streams."""
        self._background.check()
        with self._lock:
            if self._is_closed:
                return
            if not self._is_sending and len(body) <= _SMALL_BYTES and self._connection.has_room:
                self._send_now(body)
                return
            self._unsent.append(body)
            if len(self._unsent) > _MAX_UNSENT:
                self.interrupt()
            elif not self._is_sending:
                self._is_sending = True
                self._background.start(self._send_unsent, name="duplex-stream-send")

    def send_heartbeat(self) -> None:
        """Sends a heartbeat: an empty object, which the peer's ``receive`` skips."""
        self.send_encoded(_HEARTBEAT)

    def receive(self, deadline: float | None = None) -> dict[str, Any]:
        """Waits for a message and returns it. Only one thread may receive.

        Args:
            deadline: When to give up, on the monotonic clock.

        Raises:
            OSError: If the peer is lost, or sends nothing in time.
            HeartbeatTimeout: If the peer exceeds the heartbeat timeout.
            RendezvousError: If the peer sends something other than a JSON object.
        """
        message = self._next(deadline)
        while message.body == _HEARTBEAT:
            message = self._next(deadline)
        try:
            heard = json.loads(message.body)
        except (ValueError, RecursionError):
            heard = None
        if not isinstance(heard, dict):
            raise RendezvousError(
                f"All processes of a job must run the same version of stratagem, but "
                f"{self._connection.peer} sent a message that is not a JSON object."
            )
        return heard

    def _next(self, deadline: float | None) -> Message:
        if self._heartbeat_timeout is None:
            return self._connection.receive(deadline)[2]
        heartbeat_deadline = time.monotonic() + self._heartbeat_timeout
        if deadline is not None and deadline < heartbeat_deadline:
            return self._connection.receive(deadline)[2]
        try:
            return self._connection.receive(heartbeat_deadline)[2]
        except TimeoutError:
            raise HeartbeatTimeout(
                f"{self._connection.peer} has sent no heartbeat for {self._heartbeat_timeout:g} s"
            ) from None

    def interrupt(self) -> None:
        """Makes both ends find the stream lost. Returns at once, in any thread."""
        self._is_closed = True
        self._connection.interrupt()

    def flush(self, seconds: float) -> None:
        """Waits until all queued messages are sent, for at most ``seconds``."""
        if not self._background.process.is_here:
            return
        with self._lock:
            self._all_sent.wait_for(lambda: not self._is_sending, seconds)

    def finish(self, seconds: float) -> None:
        """Waits until all queued messages are sent, for at most ``seconds``, and closes."""
        self.flush(seconds)
        self.close()

    def close(self) -> None:
        """Closes the stream; queued messages are dropped."""
        self.interrupt()
        self._connection.close()

    def _send_now(self, body: bytes) -> None:
        try:
            self._connection.send(Kind.EVENT, "", Message(body), deadline=None)
        except OSError:
            self.interrupt()

    def _send_unsent(self) -> None:
        while True:
            with self._lock:
                if self._is_closed or not self._unsent:
                    self._is_sending = False
                    self._all_sent.notify_all()
                    return
                body = self._unsent.popleft()
            self._send_now(body)
