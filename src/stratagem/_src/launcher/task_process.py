"""``TaskProcess``: a supervised process whose output goes to a ``TaskOutput``."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence

from stratagem._src.launcher.event_loop import EventLoop
from stratagem._src.launcher.supervised_process import SupervisedProcess
from stratagem._src.launcher.task_output import TaskOutput

__all__ = ["TaskProcess"]

_CHUNK = 64 * 1024


class TaskProcess:
    """Runs a process, captures its output, and calls back when it exits.

    Args:
        command: The program and its arguments.
        environment: The complete environment of the process.
        loop: The event loop that reads the output and the exit.
        output: Receives everything that the process prints.
        when_ended: Called in the loop when the process has exited; the owner then calls ``close``.

    Attributes:
        process: The process, for sending signals.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        loop: EventLoop,
        output: TaskOutput,
        when_ended: Callable[[], None],
    ) -> None:
        self.process = SupervisedProcess(command, environment)
        self._loop = loop
        self._output = output
        self._when_ended = when_ended
        loop.add_reader(self.process.stdout, lambda: self._read(self.process.stdout, False))
        loop.add_reader(self.process.stderr, lambda: self._read(self.process.stderr, True))
        loop.add_reader(self.process.control, self._read_control)

    @property
    def returncode(self) -> int:
        """The return code, negative for a signal; SIGKILL if it was closed while it ran."""
        code = self.process.returncode
        return -signal.SIGKILL if code is None else code

    def close(self) -> str:
        """Kills the process if it still runs, and returns the tail of its output."""
        for file, is_error in ((self.process.stdout, False), (self.process.stderr, True)):
            while self._read(file, is_error):
                continue
            self._loop.remove_reader(file)
        self._loop.remove_reader(self.process.control)
        self.process.close()
        return self._output.close()

    def _read(self, file: int, is_error: bool) -> bool:
        """Reads available output; returns whether there was any."""
        try:
            chunk = os.read(file, _CHUNK)
        except BlockingIOError:
            return False
        if not chunk:
            self._loop.remove_reader(file)
            return False
        self._output.feed(chunk, is_error)
        return True

    def _read_control(self) -> None:
        if self.process.read_control():
            self._when_ended()
