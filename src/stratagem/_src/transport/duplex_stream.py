"""``Conversation``: plain data both ways over a protected connection; speaking never waits."""

from __future__ import annotations

import collections
import json
import threading
import time
from typing import Any

from stratagem._src.cluster.errors import RendezvousError
from stratagem._src.process.background import Background
from stratagem._src.transport import Connection, Kind, Message

__all__ = ["Conversation", "HeartbeatTimeout", "body_of"]

_MOST_UNSENT = 4096
_SMALL_BYTES = 4096
_HEARTBEAT = b"{}"
_MAX_UNACKNOWLEDGED_SECONDS = 60.0


class HeartbeatTimeout(ConnectionError):
    """The other end has sent nothing for too long: its host is off or hangs, or the network is down."""


def body_of(message: dict[str, Any]) -> bytes:
    """Returns a message as it travels."""
    return json.dumps(message).encode()


class Conversation:
    """JSON objects that go both ways.

    Whoever speaks is not held up by a peer that does not listen: what it says then waits here, and a
    thread sends it. A peer that lets too much of it wait is taken for lost.

    Args:
        connection: The connection, which the conversation closes.
        heartbeat_timeout: After how many seconds without a message or a heartbeat the other end is lost;
            ``None`` waits for as long as the connection holds.
    """

    def __init__(self, connection: Connection, heartbeat_timeout: float | None = None) -> None:
        self._connection = connection
        connection.end_when_unacknowledged(_MAX_UNACKNOWLEDGED_SECONDS)
        self._heartbeat_timeout = heartbeat_timeout
        self._speaking = threading.Lock()
        self._unsent: collections.deque[bytes] = collections.deque()
        self._all_sent = threading.Condition(self._speaking)
        self._is_sending = False
        self._is_over = False
        self._background = Background(
            f"the conversation with {connection.peer}", on_failure=lambda _: self.interrupt()
        )

    @property
    def hosts(self) -> tuple[str, str]:
        """The addresses of this machine and of the other one."""
        return self._connection.own_host, self._connection.peer_host

    def say(self, message: dict[str, Any]) -> None:
        """Has a message sent. If the other end is lost, ``hear`` says so."""
        self.say_body(body_of(message))

    def say_body(self, body: bytes) -> None:
        """Has a message sent that ``body_of`` made, for several to hear."""
        self._background.check()
        with self._speaking:
            if self._is_over:
                return
            if not self._is_sending and len(body) <= _SMALL_BYTES and self._connection.has_room:
                self._send(body)
                return
            self._unsent.append(body)
            if len(self._unsent) > _MOST_UNSENT:
                self.interrupt()
            elif not self._is_sending:
                self._is_sending = True
                self._background.start(self._send_unsent, name="conversation-send")

    def beat(self) -> None:
        """Has a heartbeat sent: an empty object, which the other end's ``hear`` does not return."""
        self.say_body(_HEARTBEAT)

    def hear(self, deadline: float | None = None) -> dict[str, Any]:
        """Waits for a message and returns it. For one thread.

        Args:
            deadline: When to give up, on the monotonic clock.

        Raises:
            OSError: If the other end is lost, or says nothing in time.
            HeartbeatTimeout: If it does not even send heartbeats in time.
            RendezvousError: If it says something else than a JSON object.
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
                f"{self._connection.peer} sent something else than a JSON object."
            )
        return heard

    def _next(self, deadline: float | None) -> Message:
        if self._heartbeat_timeout is None:
            return self._connection.receive(deadline)[2]
        silent = time.monotonic() + self._heartbeat_timeout
        if deadline is not None and deadline < silent:
            return self._connection.receive(deadline)[2]
        try:
            return self._connection.receive(silent)[2]
        except TimeoutError:
            raise HeartbeatTimeout(
                f"{self._connection.peer} has not been heard of for {self._heartbeat_timeout:g} s"
            ) from None

    def interrupt(self) -> None:
        """Lets whoever hears or is heard find the other end lost. Returns at once, in any thread."""
        self._is_over = True
        self._connection.interrupt()

    def flush(self, seconds: float) -> None:
        """Waits until all that was said is sent, for so many seconds at most."""
        if not self._background.process.is_here:
            return
        with self._speaking:
            self._all_sent.wait_for(lambda: not self._is_sending, seconds)

    def finish(self, seconds: float) -> None:
        """Waits until all that was said is sent, for so many seconds at most, and closes."""
        self.flush(seconds)
        self.close()

    def close(self) -> None:
        """Ends the conversation; what is not sent yet will not be."""
        self.interrupt()
        self._connection.close()

    def _send(self, body: bytes) -> None:
        try:
            self._connection.send(Kind.EVENT, "", Message(body), deadline=None)
        except OSError:
            self.interrupt()

    def _send_unsent(self) -> None:
        while True:
            with self._speaking:
                if self._is_over or not self._unsent:
                    self._is_sending = False
                    self._all_sent.notify_all()
                    return
                body = self._unsent.popleft()
            self._send(body)
