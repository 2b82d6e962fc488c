"""``RemoteProfiles``: profiles workers and parameter servers from the coordinator's process."""

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
    ClockOffset,
    ClockSample,
    now_ns,
    offset_from_round_trips,
)
from stratagem._src.profiling.task.options import ProfilerOptions
from stratagem._src.profiling.task.profile_service import CLOCK, PROCESS, START, STOP
from stratagem._src.profiling.task.task_profile import TaskProfile
from stratagem._src.transport import Credentials, Identity, Message, TransportClient

__all__ = ["RemoteProfiles"]

_RESPONSE_TIMEOUT = 20.0
_SEND_TIMEOUT = 300.0
_KEEPALIVE_INTERVAL = 10.0
_NUM_SAMPLES = 8
_MAX_CONCURRENT = 16
_OWN = Identity("coordinator")
_logger = logging.getLogger("stratagem")


class RemoteProfiles:
    """Profiles tasks from its creation until ``collect``.

    A task that cannot be reached is skipped, with a warning.

    Args:
        tasks: The tasks.
        options: The tracer levels.
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
            self._background.start(self._send_keepalives, name="profile-keepalive")

    def collect(self) -> list[TaskProfile]:
        """Ends the recordings and returns the profiles."""
        self._ended.set()
        self._background.join(_RESPONSE_TIMEOUT)
        self._each(_RecordedTask.ask_clock)
        profiles = self._each(lambda task: task.stop(self._profile))
        for task in self._tasks:
            task.close()
        return profiles

    def _each(self, do: Callable[[_RecordedTask], Any]) -> list[Any]:
        """Calls a function for every task, and keeps those tasks for which it succeeded."""
        if not self._tasks:
            return []
        results, remaining = [], []
        with concurrent.futures.ThreadPoolExecutor(min(len(self._tasks), _MAX_CONCURRENT)) as pool:
            futures = [pool.submit(do, task) for task in self._tasks]
        for task, future in zip(self._tasks, futures, strict=True):
            try:
                result = future.result()
            except (StratagemError, OSError) as error:
                _logger.warning("The profile will not include %s: %s", task.name, error)
                task.close()
                continue
            if result is _SAME_PROCESS:
                task.close()
            else:
                results.append(result)
                remaining.append(task)
        self._tasks = remaining
        return results

    def _send_keepalives(self) -> None:
        while not self._ended.wait(_KEEPALIVE_INTERVAL):
            self._each(_RecordedTask.ask_clock)


_SAME_PROCESS = object()


class _RecordedTask:
    """A task whose process is profiled."""

    def __init__(self, task: CoordinatedTask, credentials: Credentials) -> None:
        self.name = f"{task.job} {task.index}"
        wanted = Identity.of_task(task.job, task.index)
        self._client = TransportClient(task.address, credentials, wanted=wanted, own=_OWN)
        self._machine = ""
        self._samples: list[ClockSample] = []

    def start(self, how: dict[str, Any]) -> Any:
        """Starts the recording; returns ``_SAME_PROCESS`` if the task is in this process."""
        answer = self._ask(START, how)
        self._machine = answer["machine"]
        return _SAME_PROCESS if answer["is_own"] else None

    def ask_clock(self) -> None:
        """Samples the task's clock; also serves as the keepalive of its profile."""
        for _ in range(_NUM_SAMPLES):
            asked = now_ns()
            answer = self._ask(CLOCK, None)
            self._samples.append(ClockSample(asked, answer, now_ns()))

    def stop(self, profile: str) -> TaskProfile:
        """Ends the recording, and returns the profile."""
        message = Message(json.dumps(profile).encode())
        found = TaskProfile.from_message(self._client.call(STOP, message, timeout=_SEND_TIMEOUT))
        return dataclasses.replace(found, clock=self._clock_difference())

    def _clock_difference(self) -> ClockOffset:
        has_same_clock = self._machine and self._machine == boot_id()
        return ClockOffset() if has_same_clock else offset_from_round_trips(self._samples)

    def _ask(self, method: str, request: dict[str, Any] | None) -> Any:
        message = Message(json.dumps(request).encode())
        return json.loads(self._client.call(method, message, timeout=_RESPONSE_TIMEOUT).body)

    def close(self) -> None:
        """Closes the connection."""
        self._client.close()
