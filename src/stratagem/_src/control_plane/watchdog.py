"""``Watchdog``: ends the process when it waits for a lost worker inside the driver.

On accelerators programs are launched asynchronously. The driver waits when a result is read or too many
programs are in flight, and Python cannot interrupt that wait.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import jax

from stratagem._src.control_plane.suspend_aware_timer import SuspendAwareTimer
from stratagem._src.core.types import PyTree
from stratagem._src.jax_compat import distributed_runtime as jax_runtime
from stratagem._src.process.background import Background
from stratagem._src.process.hard_exit import end_process

__all__ = ["GRACE_SECONDS", "Watchdog"]

GRACE_SECONDS = 30.0
"""Seconds after a loss within which Python code should have seen the error."""

_POLL_SECONDS = 0.25


class Watchdog:
    """Monitors the programs in flight.

    Args:
        background: The owner of the thread.
        find_loss: Takes the seconds for which a program has been in flight and the number of programs
            launched after it; returns why it will not end, or ``None`` if it still may.
        is_reported: Returns whether Python code has seen the error.
        timeout_when_reported: Returns the seconds that the program may make no progress after that.
    """

    def __init__(
        self,
        background: Background,
        find_loss: Callable[[float, int], str | None],
        is_reported: Callable[[], bool],
        timeout_when_reported: Callable[[], float],
    ) -> None:
        self._background = background
        self._find_loss = find_loss
        self._is_reported = is_reported
        self._timeout_when_reported = timeout_when_reported
        self._called = self._returned = 0
        self._last: jax.Array | None = None
        self._launchers: set[int] = set()
        self._closed = threading.Event()
        self._is_started = False

    def launch(self, program: Callable[[], Any]) -> Any:
        """Calls ``program``, which launches a program, and monitors the results that it returns."""
        self._background.check()
        if not self._is_started:
            self._is_started = True
            self._background.start(self._watch, name="workers-watchdog")
        self._launchers.add(threading.get_ident())
        self._called += 1
        try:
            results = program()
        finally:
            self._returned += 1
        result = _first_array(results)
        if result is not None:
            self._last = result
        return results

    def has_unfinished(self) -> bool:
        """Returns whether a program is in flight."""
        return self._called > self._returned or not _is_finished(self._last)

    def close(self) -> None:
        """Stops monitoring, unless a program is in flight that may never end."""
        if not self.has_unfinished():
            self._closed.set()

    def _watch(self) -> None:
        while not self._closed.wait(_POLL_SECONDS):
            if self.has_unfinished():
                self._watch_flight()

    def _watch_flight(self) -> None:
        """Returns when the programs that are in flight now have finished."""
        # Programs run in order, so the last result is available only when all before it are.
        call, result = self._called, self._last
        in_flight = SuspendAwareTimer()
        while not self._closed.wait(_POLL_SECONDS):
            if self._returned >= call and _is_finished(result):
                return
            loss = self._find_loss(in_flight.seconds(), self._called - call)
            if loss is not None:
                self._watch_lost(loss)
                return

    def _watch_lost(self, loss: str) -> None:
        """Ends the process if it makes no progress while it waits for a lost worker."""
        # A thread that executes Python is not stuck: it may be about to see the error and save a
        # checkpoint. Only an unchanged instruction pointer says that it waits in the driver.
        still, position = SuspendAwareTimer(), self._position()
        while self.has_unfinished() and not self._closed.wait(_POLL_SECONDS):
            if (now := self._position()) != position:
                still, position = SuspendAwareTimer(), now
            allowed = self._timeout_when_reported() if self._is_reported() else GRACE_SECONDS
            if still.seconds() > allowed:
                end_process(
                    1,
                    f"{loss} The wait for it inside the driver cannot be interrupted, so this process "
                    "exits. Restart all workers from a checkpoint.",
                )

    def _position(self) -> dict[int, tuple[int, int]]:
        """Returns the current instruction of the threads that launch programs, or of the main thread."""
        frames = sys._current_frames()
        # Thread identifiers can be reused, and threads end: only those that still run count.
        threads = self._launchers & frames.keys() or {threading.main_thread().ident or 0}
        return {
            thread: (id(frame), frame.f_lasti)
            for thread, frame in frames.items()
            if thread in threads
        }


def _first_array(results: PyTree) -> jax.Array | None:
    for result in results:
        if isinstance(result, jax.Array):
            return result
        if isinstance(result, list | tuple) and (found := _first_array(result)) is not None:
            return found
    return None


def _is_finished(result: jax.Array | None) -> bool:
    return result is None or jax_runtime.is_finished(result)
