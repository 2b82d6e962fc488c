"""``Conversation``: plain data both ways over a protected connection; speaking never waits."""

from __future__ import annotations

import json
import queue
from typing import Any

from stratagem.cluster.errors import RendezvousError
from stratagem.cluster.transport import Connection, Kind, Message
from stratagem.core.background import Background

__all__ = ["Conversation"]

_MOST_UNSENT = 4096


class Conversation:
    """JSON objects that go both ways, one thread for each.

    Whoever speaks is not held up by a peer that does not listen: what it says waits here. A peer that
    lets too much of it wait is taken for lost.

    Args:
        connection: The connection, which the conversation closes.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._unsent: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._is_over = False
        self._background = Background(
            f"the conversation with {connection.peer}", on_failure=lambda _: self.interrupt()
        )
        self._background.start(self._send, name="conversation-send")

    def say(self, message: dict[str, Any]) -> None:
        """Has a message sent. If the other end is lost, ``hear`` says so."""
        self._background.check()
        if self._is_over:
            return
        if self._unsent.qsize() >= _MOST_UNSENT:
            self.interrupt()
            return
        self._unsent.put(json.dumps(message).encode())

    def hear(self, deadline: float | None = None) -> dict[str, Any]:
        """Waits for a message and returns it. For one thread.

        Args:
            deadline: When to give up, on the monotonic clock.

        Raises:
            OSError: If the other end is lost, or says nothing in time.
            RendezvousError: If it says something else than a JSON object.
        """
        _, _, message = self._connection.receive(deadline)
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

    def interrupt(self) -> None:
        """Lets whoever hears or is heard find the other end lost. Returns at once, in any thread."""
        self._is_over = True
        self._unsent.put(None)
        self._connection.interrupt()

    def finish(self, seconds: float) -> None:
        """Waits until all that was said is sent, for so many seconds at most, and closes."""
        self._unsent.put(None)
        self._background.join(seconds)
        self.close()

    def close(self) -> None:
        """Ends the conversation; what is not sent yet will not be."""
        self.interrupt()
        self._connection.close()

    def _send(self) -> None:
        try:
            while (body := self._unsent.get()) is not None:
                self._connection.send(Kind.EVENT, "", Message(body), deadline=None)
        except OSError:
            self.interrupt()
