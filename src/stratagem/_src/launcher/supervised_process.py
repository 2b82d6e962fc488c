"""``SupervisedProcess``: the launcher's handle of a task process that runs under a supervisor."""

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

__all__ = ["SupervisedProcess"]

_SUPERVISOR_SCRIPT = os.path.abspath(supervisor.__file__)
_SHUTDOWN_TIMEOUT = 5.0


class SupervisedProcess:
    """Runs a process that never outlives this one; its descendants are killed with it.

    Args:
        command: The program and its arguments.
        environment: The complete environment of the process.

    Attributes:
        control: The socket to the supervisor; call ``read_control`` when it is readable.
        stdout: A non-blocking descriptor of the process's output.
        stderr: A non-blocking descriptor of its error output.
        returncode: The return code, negative for a signal, or ``None`` while the process runs.
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
            # -I and -S isolate the supervisor from the task's variables such as PYTHONPATH, and from
            # site-packages.
            script = [sys.executable, "-I", "-S", _SUPERVISOR_SCRIPT, str(other_end.fileno())]
            self._supervisor = subprocess.Popen(
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
    def stopped_by_launcher(self) -> bool:
        """Whether the process exited because of ``stop``."""
        return self.returncode is not None and (
            -self.returncode in self._stop_signals
            or (bool(self._stop_signals) and self.returncode == 0)
        )

    def stop(self, number: int, seconds: float) -> None:
        """Sends a signal, and SIGKILL if the process still runs ``seconds`` later."""
        self._stop_signals |= {int(number), int(signal.SIGKILL)}
        self._send({"signal": int(number), "seconds": seconds})

    def send_signal(self, number: int) -> None:
        """Sends a signal."""
        self._send({"signal": int(number)})

    def _send(self, order: dict[str, float]) -> None:
        with contextlib.suppress(OSError):  # the supervisor is gone, and the task with it
            self.control.sendall(json.dumps(order).encode() + b"\n")

    def read_control(self) -> bool:
        """Reads messages of the supervisor; returns whether the supervisor has exited."""
        try:
            received = self.control.recv(4096)
        except OSError:
            received = b""
        *lines, self._received = (self._received + received).split(b"\n")
        for line in lines:
            message = json.loads(line)
            self.pid = message.get("pid", self.pid)
            self.returncode = message.get("returncode", self.returncode)
        if received:
            return False
        if self.returncode is None:
            # The supervisor was killed; the kernel then kills the task (PDEATHSIG).
            self.returncode = -signal.SIGKILL
        return True

    def close(self) -> None:
        """Kills the process if it still runs, and releases its pipes and its supervisor."""
        self._files.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._supervisor.wait(_SHUTDOWN_TIMEOUT)


def _pipe(mine: contextlib.ExitStack, theirs: contextlib.ExitStack) -> tuple[int, int]:
    reading, writing = os.pipe()
    mine.callback(os.close, reading)
    theirs.callback(os.close, writing)
    os.set_blocking(reading, False)
    return reading, writing
