"""``SupervisedProcess``: a process under its guardian whose output is shown."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence

from stratagem._src.launcher.guarded_process import GuardedProcess
from stratagem._src.launcher.task_loop import TaskLoop
from stratagem._src.launcher.task_output import TaskOutput

__all__ = ["SupervisedProcess"]

_CHUNK = 64 * 1024


class SupervisedProcess:
    """Runs a process, feeds what it prints to its output, and says when it has ended.

    Args:
        command: The program and its arguments.
        environment: Its whole environment.
        loop: Reads the output and hears of the end.
        output: Takes in what the process prints.
        when_ended: Called in the loop when the process has ended; the owner then calls ``close``.

    Attributes:
        process: The process, for signals.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        loop: TaskLoop,
        output: TaskOutput,
        when_ended: Callable[[], None],
    ) -> None:
        self.process = GuardedProcess(command, environment)
        self._loop = loop
        self._output = output
        self._when_ended = when_ended
        loop.add_reader(self.process.stdout, lambda: self._read(self.process.stdout, False))
        loop.add_reader(self.process.stderr, lambda: self._read(self.process.stderr, True))
        loop.add_reader(self.process.control, self._hear)

    @property
    def returncode(self) -> int:
        """How it ended, negative for a signal; one that is closed before its end is killed."""
        code = self.process.returncode
        return -signal.SIGKILL if code is None else code

    def close(self) -> str:
        """Ends the process if it still runs, and returns the end of its output."""
        for file, is_error in ((self.process.stdout, False), (self.process.stderr, True)):
            while self._read(file, is_error):
                continue
            self._loop.remove_reader(file)
        self._loop.remove_reader(self.process.control)
        self.process.close()
        return self._output.close()

    def _read(self, file: int, is_error: bool) -> bool:
        """Takes in some output; returns whether there was any."""
        try:
            chunk = os.read(file, _CHUNK)
        except BlockingIOError:
            return False
        if not chunk:
            self._loop.remove_reader(file)
            return False
        self._output.feed(chunk, is_error)
        return True

    def _hear(self) -> None:
        if self.process.read_control():
            self._when_ended()
