"""``ValueGather``: waits for values that all workers contribute through the membership server."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from stratagem._src.control_plane.membership_client import MembershipClient
from stratagem._src.control_plane.suspend_aware_timer import SuspendAwareTimer
from stratagem._src.control_plane.worker_status import AGREEING, WorkerStatus

__all__ = ["ValueGather", "WaitCheck"]

_POLL_SECONDS = 0.25


class WaitCheck(Protocol):
    """Raises if a wait can never end."""

    def __call__(self, seconds: float, status: WorkerStatus, *, in_sequence: bool) -> None:
        """Checks the wait.

        Args:
            seconds: The duration of the wait so far.
            status: The status of this worker.
            in_sequence: Whether the wait is part of the common sequence of programs.
        """


class ValueGather:
    """Gathers one value from every worker (an all-gather of plain data over the control plane).

    Args:
        client: The client of the membership server.
        check_wait: Called periodically during a wait.
    """

    def __init__(self, client: MembershipClient, check_wait: WaitCheck) -> None:
        self._client = client
        self._check_wait = check_wait
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self._inputs: list[str] = []

    def next_key(self, topic: str) -> str:
        """Returns the key of the next gather of a topic."""
        with self._lock:
            # All workers count alike, so the n-th gather of a topic has the same key everywhere.
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
        """Waits for the values of all workers and returns them; ``None`` if the wait is cancelled."""
        timer = SuspendAwareTimer()
        # In short waits: in between it looks for lost workers and workers that never come here, so that the
        # wait ends with a reason instead of a timeout.
        while (given := self._client.take(key, _POLL_SECONDS)) is None:
            if cancelled():
                # Otherwise the others would take the value of a worker that does not wait for theirs.
                self._client.withdraw(key)
                return None
            self._check_wait(timer.seconds(), status, in_sequence=in_sequence)
        return given

    def take_out_of_sequence(
        self, key: str, what: str, cancelled: Callable[[], bool] = lambda: False
    ) -> Any:
        """Waits for the values of all workers, outside the common sequence of programs."""
        with self._awaited(what):
            return self.take(key, WorkerStatus(AGREEING, at=what), cancelled, in_sequence=False)

    @contextlib.contextmanager
    def _awaited(self, what: str) -> Iterator[None]:
        """Includes what the input waits for in the status that other workers see."""
        with self._lock:
            self._inputs.append(what)
            self._client.set_inputs(tuple(self._inputs))
        try:
            yield
        finally:
            with self._lock:
                self._inputs.remove(what)
                self._client.set_inputs(tuple(self._inputs))
