"""The supervisor process between the launcher and a task: no process of the task outlives the launcher.

It runs as a script and imports only modules that load fast. Its arguments are the descriptor of a socket
to the launcher, the launcher's process id, and the command of the task. It kills the task and all of the
task's descendants

- when the launcher sends a line of JSON with the signal to send and the seconds until SIGKILL (without
  the seconds it only forwards the signal);
- when the launcher is gone, for any reason;
- when the task's own process exits.

It sends two lines to the launcher: the process id of the task, and its return code when it exits.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import socket
import sys
import time

__all__ = ["Supervisor", "main"]

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_CANNOT_RUN = 127
_IGNORED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
# The socket reports EOF when the launcher dies, unless a forked child still holds the other end open.
# Polling the parent process id covers that case.
_POLL_INTERVAL = 1.0


class Supervisor:
    """Runs one task and kills its process tree when the task or the launcher ends."""

    def __init__(self, control: socket.socket, launcher: int, command: list[str]) -> None:
        self._control = control
        self._launcher = launcher
        self._launcher_is_gone = False
        self._kill_at: float | None = None
        self._received = b""
        for number in _IGNORED:
            signal.signal(number, signal.SIG_IGN)
        # Orphaned descendants of the task are re-parented to this process, which can find and kill them.
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        self._woken, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        self._task = self._start(command)

    def run(self) -> None:
        """Returns when the task and all of its descendants have exited."""
        self._report({"pid": self._task})
        returncode = None
        while returncode is None:
            self._wait()
            returncode = self._reap()
        self._report({"returncode": returncode})
        _kill_descendants()

    def _start(self, command: list[str]) -> int:
        supervisor = os.getpid()
        started, starting = os.pipe()
        task = os.fork()
        if task == 0:
            try:
                os.setpgid(0, 0)
                for number in (*_IGNORED, signal.SIGPIPE, signal.SIGXFSZ):
                    signal.signal(number, signal.SIG_DFL)
                _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
                # PDEATHSIG is not sent if the parent died before prctl: check it afterwards.
                if os.getppid() == supervisor:
                    os.execvp(command[0], command)
            except OSError as error:
                os.write(2, f"cannot run {command[0]}: {error}\n".encode())
            finally:
                os._exit(_CANNOT_RUN)
        # The pipe is close-on-exec: the read returns when exec has replaced the forked process. A signal
        # sent earlier would be ignored, because the child inherits this process's signal handlers.
        os.close(starting)
        os.read(started, 1)
        os.close(started)
        devnull = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(devnull, stream)
        return task

    def _wait(self) -> None:
        now = time.monotonic()
        seconds = _POLL_INTERVAL
        if self._kill_at is not None:
            seconds = min(seconds, max(0.0, self._kill_at - now))
        control = self._control.fileno()
        # select() fails with descriptors above 1,023.
        poller = select.poll()
        poller.register(self._woken, select.POLLIN)
        if not self._launcher_is_gone:
            poller.register(control, select.POLLIN)
        readable = [file for file, _ in poller.poll(seconds * 1000)]
        if self._woken in readable:
            os.read(self._woken, 4096)
        if control in readable:
            self._receive_orders()
        if self._launcher_is_gone or os.getppid() != self._launcher:
            self._launcher_is_gone = True
            self._kill_at = 0.0
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            self._signal(signal.SIGKILL)
            self._kill_at = None

    def _receive_orders(self) -> None:
        try:
            received = self._control.recv(4096)
        except OSError:
            received = b""
        if not received:
            self._launcher_is_gone = True
            return
        *lines, self._received = (self._received + received).split(b"\n")
        for line in lines:
            order = json.loads(line)
            self._signal(order["signal"])
            if "seconds" in order:
                self._kill_at = time.monotonic() + order["seconds"]

    def _signal(self, number: int) -> None:
        try:
            os.killpg(self._task, number)
        except (
            ProcessLookupError,
            PermissionError,
        ):  # the group does not exist yet, or is not ours
            os.kill(self._task, number)

    def _reap(self) -> int | None:
        """Reaps exited children; returns the task's return code if the task is among them."""
        returncode = None
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return returncode
            if pid == 0:
                return returncode
            if pid == self._task:
                returncode = os.waitstatus_to_exitcode(status)
                _kill_group(self._task)

    def _report(self, line: dict[str, int]) -> None:
        try:
            self._control.sendall(json.dumps(line).encode() + b"\n")
        except OSError:
            return  # the launcher is gone


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _kill_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def _kill_descendants() -> None:
    while True:
        for pid in _descendants():
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue
        try:
            os.wait()
        except ChildProcessError:
            return


def _descendants() -> list[int]:
    if sys.platform != "linux":
        return []
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    # The program name comes first, in parentheses, and may contain any character.
                    parent = int(file.read().rpartition(b")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
            children.setdefault(parent, []).append(int(name))
    found, to_visit = [], [os.getpid()]
    while to_visit:
        mine = children.get(to_visit.pop(), [])
        found += mine
        to_visit += mine
    return found


def main(arguments: list[str]) -> None:
    """Runs the supervisor."""
    control = socket.socket(fileno=int(arguments[0]))
    control.set_inheritable(False)
    Supervisor(control, int(arguments[1]), arguments[2:]).run()


if __name__ == "__main__":
    main(sys.argv[1:])
