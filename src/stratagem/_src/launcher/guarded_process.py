"""``GuardedProcess``: a task's process under its guardian, as the launcher sees it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence

from stratagem._src.launcher import supervisor

__all__ = ["GuardedProcess"]

_GUARDIAN = os.path.abspath(supervisor.__file__)
_SECONDS_TO_LEAVE = 5.0


class GuardedProcess:
    """A process that does not outlive this one, and takes whatever it started with it.

    Args:
        command: The program and its arguments.
        environment: Its whole environment.

    Attributes:
        control: The socket to the guardian; call ``read_control`` when it is readable.
        stdout: The descriptor to read its output from, which does not block.
        stderr: The same for its errors.
        returncode: How it ended, negative for a signal, or ``None``.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.pid: int | None = None
        self.returncode: int | None = None
        self._received = b""
        self._stop_signals: set[int] = set()
        with contextlib.ExitStack() as mine, contextlib.ExitStack() as theirs:
            self.control, other_end = socket.socketpair()
            mine.callback(self.control.close)
            theirs.callback(other_end.close)
            self.stdout, stdout = _pipe(mine, theirs)
            self.stderr, stderr = _pipe(mine, theirs)
            # Isolated from the task's variables such as PYTHONPATH, and without site-packages.
            script = [sys.executable, "-I", "-S", _GUARDIAN, str(other_end.fileno())]
            self._guardian = subprocess.Popen(
                [*script, str(os.getpid()), *command],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                pass_fds=(other_end.fileno(),),
                start_new_session=True,
            )
            self._files = mine.pop_all()

    @property
    def ended_as_told(self) -> bool:
        """Whether it ended because of ``stop``."""
        return self.returncode is not None and (
            -self.returncode in self._stop_signals
            or (bool(self._stop_signals) and self.returncode == 0)
        )

    def stop(self, number: int, seconds: float) -> None:
        """Sends a signal, and SIGKILL if that has not ended the process some seconds later."""
        self._stop_signals |= {int(number), int(signal.SIGKILL)}
        self._order({"signal": int(number), "seconds": seconds})

    def send_signal(self, number: int) -> None:
        """Sends a signal."""
        self._order({"signal": int(number)})

    def _order(self, order: dict[str, float]) -> None:
        with contextlib.suppress(OSError):  # the guardian has gone, and the task with it
            self.control.sendall(json.dumps(order).encode() + b"\n")

    def read_control(self) -> bool:
        """Takes in what the guardian says; returns whether everything is over."""
        try:
            received = self.control.recv(4096)
        except OSError:
            received = b""
        *lines, self._received = (self._received + received).split(b"\n")
        for line in lines:
            said = json.loads(line)
            self.pid = said.get("pid", self.pid)
            self.returncode = said.get("returncode", self.returncode)
        if received:
            return False
        if self.returncode is None:
            # The guardian was killed; the kernel then kills the task.
            self.returncode = -signal.SIGKILL
        return True

    def close(self) -> None:
        """Ends the process if it still runs, and gives back everything that belongs to it."""
        self._files.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._guardian.wait(_SECONDS_TO_LEAVE)


def _pipe(mine: contextlib.ExitStack, theirs: contextlib.ExitStack) -> tuple[int, int]:
    reading, writing = os.pipe()
    mine.callback(os.close, reading)
    theirs.callback(os.close, writing)
    os.set_blocking(reading, False)
    return reading, writing
