"""``ProfileService``: lets the coordinator profile another process."""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from collections.abc import Mapping

from stratagem._src.core.errors import UnavailableError
from stratagem._src.process.background import Background
from stratagem._src.process.host_identity import boot_id
from stratagem._src.profiling.task.clock import now_ns
from stratagem._src.profiling.task.options import ProfilerOptions
from stratagem._src.profiling.task.recording import ProfileRecording
from stratagem._src.transport import Handler, Message

__all__ = ["CLOCK", "PROCESS", "START", "STOP", "ProfileService"]

START, CLOCK, STOP = "profile/start", "profile/clock", "profile/stop"
PROCESS = uuid.uuid4().hex
"""A unique name of this process, to detect a request from the process itself."""

_KEEPALIVE_TIMEOUT = 60.0
_logger = logging.getLogger("stratagem")


class ProfileService:
    """Records a profile of this process on request, and returns it to the requester.

    If the requester sends no keepalive for a minute, the recording is discarded.

    Args:
        task: The name of this task, such as ``"worker 0"``.
    """

    def __init__(self, task: str) -> None:
        self.handlers: Mapping[str, Handler] = {
            START: self._start,
            CLOCK: self._clock,
            STOP: self._stop,
        }
        self._task = task
        self._lock = threading.Lock()
        self._recording: ProfileRecording | None = None
        self._profile = ""
        self._heard = 0.0
        self._wake = threading.Event()
        self._background = Background(f"the profile of {task}")

    def close(self) -> None:
        """Discards the recording, if any."""
        recording = self._take("")
        if recording is not None:
            recording.end(self._task)

    def _start(self, message: Message) -> Message:
        """Starts a profile, unless the requester is this process itself."""
        self._background.check()
        request = json.loads(message.body)
        is_own = request["process"] == PROCESS
        if not is_own:
            options = ProfilerOptions(**request["options"])
            with self._lock:
                self._recording = ProfileRecording(options)
                self._profile, self._heard = request["profile"], time.monotonic()
                self._wake = threading.Event()
                watch = (self._watch, self._profile, self._wake)
            self._background.start(*watch, name="profile-watch")
        return Message(json.dumps({"is_own": is_own, "machine": boot_id()}).encode())

    def _clock(self, message: Message) -> Message:
        """Returns the time; also serves as the keepalive of the profile."""
        now = now_ns()
        self._heard = time.monotonic()
        return Message(json.dumps(now).encode())

    def _stop(self, message: Message) -> Message:
        recording = self._take(json.loads(message.body))
        if recording is None:
            raise UnavailableError(
                f"{self._task} has no such profile: it was restarted meanwhile, or received no keepalive "
                f"for {_KEEPALIVE_TIMEOUT:g} s."
            )
        return recording.end(self._task).to_message()

    def _take(self, profile: str) -> ProfileRecording | None:
        """Takes the recording of a profile, or of any if the name is empty, and ends its timeout."""
        with self._lock:
            if self._recording is None or profile not in ("", self._profile):
                return None
            recording, self._recording = self._recording, None
            self._wake.set()
        return recording

    def _watch(self, profile: str, ended: threading.Event) -> None:
        while not ended.wait(1.0):
            if time.monotonic() - self._heard > _KEEPALIVE_TIMEOUT:
                recording = self._take(profile)
                if recording is not None:
                    recording.end(self._task)
                    _logger.warning(
                        "%s: discarded its profile, because no keepalive arrived for %g s.",
                        self._task,
                        _KEEPALIVE_TIMEOUT,
                    )
                return
