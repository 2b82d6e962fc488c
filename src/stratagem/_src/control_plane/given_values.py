"""``GivenValues``: what the workers give each other at the meeting point, and the waits for it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from stratagem._src.control_plane.membership_client import MeetingClient
from stratagem._src.control_plane.suspend_aware_timer import Patience
from stratagem._src.control_plane.worker_status import AGREEING, WorkerStatus

__all__ = ["GivenValues", "Look"]

_POLL_SECONDS = 0.25


class Look(Protocol):
    """Looks whether a wait is in vain, and raises if it is."""

    def __call__(self, seconds: float, status: WorkerStatus, *, in_sequence: bool) -> None:
        """Looks.

        Args:
            seconds: How long it has been waited.
            status: Where this worker stands.
            in_sequence: Whether it waits in the common sequence of programs; else beside it.
        """


class GivenValues:
    """Takes what every worker gives, when all have.

    Args:
        client: The line to the meeting point.
        look: Called every now and then during a wait.
    """

    def __init__(self, client: MeetingClient, look: Look) -> None:
        self._client = client
        self._look = look
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self._inputs: list[str] = []

    def next_key(self, topic: str) -> str:
        """Returns the key of the next exchange of a topic."""
        with self._lock:
            turn = self._counts[topic] = self._counts.get(topic, 0) + 1
        return f"{topic}/{turn}"

    def take(
        self,
        key: str,
        status: WorkerStatus,
        cancelled: Callable[[], bool] = lambda: False,
        *,
        in_sequence: bool,
    ) -> Any:
        """Returns what the others gave too, when it is there; ``None`` if it is cancelled."""
        patience = Patience()
        while (given := self._client.take(key, _POLL_SECONDS)) is None:
            if cancelled():
                self._client.withdraw(key)
                return None
            self._look(patience.seconds(), status, in_sequence=in_sequence)
        return given

    def take_beside(
        self, key: str, what: str, cancelled: Callable[[], bool] = lambda: False
    ) -> Any:
        """Returns what the others gave too, beside the common sequence of programs."""
        with self._awaited(what):
            return self.take(key, WorkerStatus(AGREEING, at=what), cancelled, in_sequence=False)

    @contextlib.contextmanager
    def _awaited(self, what: str) -> Iterator[None]:
        """Lets the others know what the input waits for."""
        with self._lock:
            self._inputs.append(what)
            self._client.set_inputs(tuple(self._inputs))
        try:
            yield
        finally:
            with self._lock:
                self._inputs.remove(what)
                self._client.set_inputs(tuple(self._inputs))
