"""``RemoteProfiles``: the profiles of workers and parameter servers, from the coordinator's process."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import json
import logging
import threading
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from stratagem._src.core.errors import StratagemError
from stratagem._src.parameter_server.coordinator.cluster_coordinator import CoordinatedTask
from stratagem._src.process.background import Background
from stratagem._src.process.host_identity import boot_id
from stratagem._src.profiling.task.clock import (
    ClockDifference,
    ClockQuestion,
    now_ns,
    quickest,
)
from stratagem._src.profiling.task.options import ProfilerOptions
from stratagem._src.profiling.task.profile_service import CLOCK, PROCESS, START, STOP
from stratagem._src.profiling.task.task_profile import TaskProfile
from stratagem._src.transport import Credentials, Identity, Message, TransportClient

__all__ = ["RemoteProfiles"]

_RESPONSE_TIMEOUT = 20.0
_SEND_TIMEOUT = 300.0
_KEEPALIVE_INTERVAL = 10.0
_NUM_QUESTIONS = 8
_MAX_CONCURRENT = 16
_OWN = Identity("coordinator")
_logger = logging.getLogger("stratagem")


class RemoteProfiles:
    """Has tasks recorded from when it is made until ``collect``.

    A task that cannot be reached is left out, with a warning.

    Args:
        tasks: The tasks.
        options: How much is recorded.
    """

    def __init__(self, tasks: Sequence[CoordinatedTask], options: ProfilerOptions) -> None:
        credentials = Credentials.from_environment()
        self._profile = uuid.uuid4().hex
        self._tasks = [_RecordedTask(task, credentials) for task in tasks]
        start = {
            "process": PROCESS,
            "profile": self._profile,
            "options": dataclasses.asdict(options),
        }
        self._each(lambda task: task.start(start))
        self._ended = threading.Event()
        self._background = Background("the profiles of other tasks")
        if self._tasks:
            self._background.start(self._show_signs, name="profile-signs")

    def collect(self) -> list[TaskProfile]:
        """Ends the recordings and returns them."""
        self._ended.set()
        self._background.join(_RESPONSE_TIMEOUT)
        self._each(_RecordedTask.ask_clock)
        profiles = self._each(lambda task: task.stop(self._profile))
        for task in self._tasks:
            task.close()
        return profiles

    def _each(self, do: Callable[[_RecordedTask], Any]) -> list[Any]:
        """Does something with every task, and goes on with those where it succeeded."""
        if not self._tasks:
            return []
        results, going_on = [], []
        with concurrent.futures.ThreadPoolExecutor(min(len(self._tasks), _MAX_CONCURRENT)) as pool:
            futures = [pool.submit(do, task) for task in self._tasks]
        for task, future in zip(self._tasks, futures, strict=True):
            try:
                result = future.result()
            except (StratagemError, OSError) as error:
                _logger.warning("The profile will be without %s: %s", task.name, error)
                task.close()
                continue
            if result is _SAME_PROCESS:
                task.close()
            else:
                results.append(result)
                going_on.append(task)
        self._tasks = going_on
        return results

    def _show_signs(self) -> None:
        while not self._ended.wait(_KEEPALIVE_INTERVAL):
            self._each(_RecordedTask.ask_clock)


_SAME_PROCESS = object()


class _RecordedTask:
    """A task that is recorded."""

    def __init__(self, task: CoordinatedTask, credentials: Credentials) -> None:
        self.name = f"{task.job} {task.index}"
        wanted = Identity.of_task(task.job, task.index)
        self._client = TransportClient(task.address, credentials, wanted=wanted, own=_OWN)
        self._machine = ""
        self._questions: list[ClockQuestion] = []

    def start(self, how: dict[str, Any]) -> Any:
        """Begins; returns ``_SAME_PROCESS`` if the task is in this process."""
        answer = self._ask(START, how)
        self._machine = answer["machine"]
        return _SAME_PROCESS if answer["is_own"] else None

    def ask_clock(self) -> None:
        """Asks for the time, and shows that its profile is still wanted."""
        for _ in range(_NUM_QUESTIONS):
            asked = now_ns()
            answer = self._ask(CLOCK, None)
            self._questions.append(ClockQuestion(asked, answer, now_ns()))

    def stop(self, profile: str) -> TaskProfile:
        """Ends, and returns the profile."""
        message = Message(json.dumps(profile).encode())
        found = TaskProfile.from_message(self._client.call(STOP, message, timeout=_SEND_TIMEOUT))
        return dataclasses.replace(found, clock=self._clock_difference())

    def _clock_difference(self) -> ClockDifference:
        has_same_clock = self._machine and self._machine == boot_id()
        return ClockDifference() if has_same_clock else quickest(self._questions)

    def _ask(self, method: str, what: Any) -> Any:
        message = Message(json.dumps(what).encode())
        return json.loads(self._client.call(method, message, timeout=_RESPONSE_TIMEOUT).body)

    def close(self) -> None:
        """Ends the connection."""
        self._client.close()
