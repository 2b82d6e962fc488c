"""``SignalPipe``: signals as events of the loop."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from stratagem._src.launcher.events import Announced, Interrupted, Report
from stratagem._src.launcher.task_loop import TaskLoop

__all__ = ["SignalPipe"]

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# What Slurm's --signal and others send some time before the end; it is the tasks' to heed.
_ANNOUNCING = (signal.SIGUSR1, signal.SIGUSR2)


class SignalPipe:
    """While entered, in the main thread, turns signals that end a program or announce it into reports."""

    def __enter__(self) -> SignalPipe:
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._reading, False)
        os.set_blocking(self._writing, False)
        # First, or a signal between this and the handlers would be lost.
        self._wakeup = signal.set_wakeup_fd(self._writing)
        # A program started with nohup goes on when its terminal closes.
        handled = [n for n in _ENDING + _ANNOUNCING if signal.getsignal(n) is not signal.SIG_IGN]
        self._handlers = {n: signal.signal(n, lambda *_: None) for n in handled}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup)
        os.close(self._reading)
        os.close(self._writing)

    def attach(self, loop: TaskLoop, report: Callable[[Report], None]) -> None:
        """Reports every signal from now on."""

        def read() -> None:
            for number in os.read(self._reading, 256):
                if number in self._handlers:
                    report(Announced(number) if number in _ANNOUNCING else Interrupted(number))

        loop.add_reader(self._reading, read)
