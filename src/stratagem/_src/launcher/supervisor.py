"""The process between the launcher and a task, which lets nothing of the task outlive the launcher.

It is run as a script, and imports only what starts fast. The first argument is the descriptor of a
socket to the launcher, the second the launcher's process id, the rest the command of the task. It
ends the task and everything that the task started

- when the launcher says so, with a line of JSON: the signal to send, and the seconds until SIGKILL
  (without these it only sends the signal);
- when the launcher has gone, however it went;
- when the task's own process has ended.

Two lines go to the launcher: the id of the task's process, and its return code when it has ended.
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

__all__ = ["Guardian", "main"]

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
# The socket tells when the launcher has gone, unless a fork of it still holds the other end.
_SECONDS_BETWEEN_LOOKS = 1.0


class Guardian:
    """Runs one task and watches over it."""

    def __init__(self, control: socket.socket, launcher: int, command: list[str]) -> None:
        self._control = control
        self._launcher = launcher
        self._is_alone = False
        self._kill_at: float | None = None
        self._received = b""
        for number in _IGNORED:
            signal.signal(number, signal.SIG_IGN)
        # What the task starts and abandons becomes a child of this process, where it is found.
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        self._woken, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        self._task = self._start(command)

    def run(self) -> None:
        """Returns when the task and everything that it started are gone."""
        self._report({"pid": self._task})
        returncode = None
        while returncode is None:
            self._wait()
            returncode = self._reap()
        self._report({"returncode": returncode})
        _end_all_children()

    def _start(self, command: list[str]) -> int:
        guardian = os.getpid()
        started, starting = os.pipe()
        task = os.fork()
        if task == 0:
            try:
                os.setpgid(0, 0)
                for number in (*_IGNORED, signal.SIGPIPE, signal.SIGXFSZ):
                    signal.signal(number, signal.SIG_DFL)
                _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
                if os.getppid() == guardian:
                    os.execvp(command[0], command)
            except OSError as error:
                os.write(2, f"{command[0]} cannot be run: {error}\n".encode())
            finally:
                os._exit(_CANNOT_RUN)
        # Ends when the command has replaced the fork. A signal sent before would be ignored.
        os.close(starting)
        os.read(started, 1)
        os.close(started)
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nothing, stream)
        return task

    def _wait(self) -> None:
        now = time.monotonic()
        seconds = _SECONDS_BETWEEN_LOOKS
        if self._kill_at is not None:
            seconds = min(seconds, max(0.0, self._kill_at - now))
        control = self._control.fileno()
        # Not select, which fails with descriptors from 1,024 on.
        watched = select.poll()
        watched.register(self._woken, select.POLLIN)
        if not self._is_alone:
            watched.register(control, select.POLLIN)
        readable = [file for file, _ in watched.poll(seconds * 1000)]
        if self._woken in readable:
            os.read(self._woken, 4096)
        if control in readable:
            self._listen()
        if self._is_alone or os.getppid() != self._launcher:
            self._is_alone = True
            self._kill_at = 0.0
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            self._signal(signal.SIGKILL)
            self._kill_at = None

    def _listen(self) -> None:
        try:
            received = self._control.recv(4096)
        except OSError:
            received = b""
        if not received:
            self._is_alone = True
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
        except (ProcessLookupError, PermissionError):  # not its own group yet, or not ours
            os.kill(self._task, number)

    def _reap(self) -> int | None:
        """Collects the dead; returns how the task ended, if it has."""
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
            return  # the launcher has gone


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _kill_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def _end_all_children() -> None:
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
                    # The name of the program comes before, in brackets, and may hold anything.
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
    """Runs the guardian."""
    control = socket.socket(fileno=int(arguments[0]))
    control.set_inheritable(False)
    Guardian(control, int(arguments[1]), arguments[2:]).run()


if __name__ == "__main__":
    main(sys.argv[1:])
