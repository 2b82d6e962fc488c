"""``SchedulerProcess``: a scheduler's command whose output is shown unchanged."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence

from stratagem._src.launcher.console import Console
from stratagem._src.launcher.event_loop import EventLoop
from stratagem._src.launcher.lines import LineSplitter
from stratagem._src.launcher.supervised_process import SupervisedProcess

__all__ = ["SchedulerProcess"]

_CHUNK = 64 * 1024


class SchedulerProcess:
    """Runs a scheduler's command, whose output is that of tasks and has their prefixes already.

    Args:
        loop: The event loop that reads its output and its exit.
        command: The command.
        environment: The complete environment of the command.
        console: Shows its lines.
        when_ended: Called with its return code, negative for a signal, after all its lines are shown.
    """

    def __init__(
        self,
        loop: EventLoop,
        command: Sequence[str],
        environment: Mapping[str, str],
        console: Console,
        when_ended: Callable[[int], None],
    ) -> None:
        self._loop = loop
        self._console = console
        self._when_ended = when_ended
        self._process = SupervisedProcess(command, environment)
        self._splitters = {
            self._process.stdout: LineSplitter(),
            self._process.stderr: LineSplitter(),
        }
        for file in self._splitters:
            loop.add_reader(file, functools.partial(self._read, file))
        loop.add_reader(self._process.control, self._read_control)
        self.is_over = False

    def stop(self, number: int, seconds: float) -> None:
        """Sends a signal, and SIGKILL if the command still runs ``seconds`` later."""
        self._process.stop(number, seconds)

    def close(self) -> None:
        """Kills the command if it still runs."""
        if self.is_over:
            return
        self.is_over = True
        for file, splitter in self._splitters.items():
            while self._read(file):
                continue
            self._show(file, splitter.flush())
            self._loop.remove_reader(file)
        self._loop.remove_reader(self._process.control)
        self._process.close()

    def _read(self, file: int) -> bool:
        try:
            chunk = os.read(file, _CHUNK)
        except BlockingIOError:
            return False
        if not chunk:
            self._loop.remove_reader(file)
            return False
        self._show(file, self._splitters[file].feed(chunk))
        return True

    def _show(self, file: int, lines: list[str]) -> None:
        for line in lines:
            self._console.foreign_line(line, is_error=file == self._process.stderr)

    def _read_control(self) -> None:
        if self._process.read_control():
            self.close()
            assert self._process.returncode is not None
            self._when_ended(self._process.returncode)
