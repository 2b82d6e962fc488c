"""``ProfileService``: by which the process that leads has another one profiled."""

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
"""What this process is called, to know whether another one is itself."""

_SECONDS_OF_SILENCE = 60.0
_logger = logging.getLogger("stratagem")


class ProfileService:
    """Records this process when it is asked to, and gives the profile to who asked.

    If who asked is not heard of for a minute, the recording is thrown away.

    Args:
        task: What this task is called, such as ``"worker 0"``.
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
        """Throws away what is recorded."""
        recording = self._take("")
        if recording is not None:
            recording.end(self._task)

    def _start(self, message: Message) -> Message:
        """Begins a profile, unless the one who asks is this process itself."""
        self._background.check()
        asked = json.loads(message.body)
        is_own = asked["process"] == PROCESS
        if not is_own:
            options = ProfilerOptions(**asked["options"])
            with self._lock:
                self._recording = ProfileRecording(options)
                self._profile, self._heard = asked["profile"], time.monotonic()
                self._wake = threading.Event()
                watch = (self._watch, self._profile, self._wake)
            self._background.start(*watch, name="profile-watch")
        return Message(json.dumps({"is_own": is_own, "machine": boot_id()}).encode())

    def _clock(self, message: Message) -> Message:
        """Tells the time, and hears that somebody still wants the profile."""
        now = now_ns()
        self._heard = time.monotonic()
        return Message(json.dumps(now).encode())

    def _stop(self, message: Message) -> Message:
        recording = self._take(json.loads(message.body))
        if recording is None:
            raise UnavailableError(
                f"{self._task} has no such profile: it was started anew meanwhile, or has heard nothing "
                f"for {_SECONDS_OF_SILENCE:g} s."
            )
        return recording.end(self._task).to_message()

    def _take(self, profile: str) -> ProfileRecording | None:
        """Takes the recording of a profile, for the empty name any, and ends the watch over it."""
        with self._lock:
            if self._recording is None or profile not in ("", self._profile):
                return None
            recording, self._recording = self._recording, None
            self._wake.set()
        return recording

    def _watch(self, profile: str, ended: threading.Event) -> None:
        while not ended.wait(1.0):
            if time.monotonic() - self._heard > _SECONDS_OF_SILENCE:
                recording = self._take(profile)
                if recording is not None:
                    recording.end(self._task)
                    _logger.warning(
                        "%s: nobody has asked for its profile for %g s; it is thrown away.",
                        self._task,
                        _SECONDS_OF_SILENCE,
                    )
                return
