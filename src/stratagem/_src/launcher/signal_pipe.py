"""``SignalPipe``: turns signals into events of the loop (the self-pipe trick)."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from stratagem._src.launcher.event_loop import EventLoop
from stratagem._src.launcher.events import Interrupted, Report, ShutdownNotice

__all__ = ["SignalPipe"]

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Slurm's --signal and similar options send these before the time limit. The tasks handle them.
_NOTICES = (signal.SIGUSR1, signal.SIGUSR2)


class SignalPipe:
    """While entered, in the main thread, reports signals that end a job or announce its end."""

    def __enter__(self) -> SignalPipe:
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._reading, False)
        os.set_blocking(self._writing, False)
        # Before the handlers are set: a signal between the two steps would be lost.
        self._wakeup = signal.set_wakeup_fd(self._writing)
        # Ignored signals stay ignored: a program started with nohup continues when its terminal closes.
        handled = [n for n in _ENDING + _NOTICES if signal.getsignal(n) is not signal.SIG_IGN]
        self._handlers = {n: signal.signal(n, lambda *_: None) for n in handled}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup)
        os.close(self._reading)
        os.close(self._writing)

    def attach(self, loop: EventLoop, report: Callable[[Report], None]) -> None:
        """Reports every signal from now on."""

        def read() -> None:
            for number in os.read(self._reading, 256):
                if number in self._handlers:
                    report(ShutdownNotice(number) if number in _NOTICES else Interrupted(number))

        loop.add_reader(self._reading, read)
