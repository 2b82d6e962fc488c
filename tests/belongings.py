"""What a process has: threads, child processes and listening sockets, to see what a test leaves behind."""

import contextlib
import dataclasses
import gc
import os
import threading
import time
from pathlib import Path

import psutil

# Started once by the standard library, for shared memory and processes that are spawned.
_HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")


@dataclasses.dataclass(frozen=True)
class Belongings:
    """Threads, child processes and listening sockets of this process."""

    threads: frozenset[threading.Thread] = frozenset()
    processes: frozenset[psutil.Process] = frozenset()
    listening: frozenset[tuple] = frozenset()

    @classmethod
    def now(cls):
        return cls(frozenset(threading.enumerate()), _children(), _listening())

    def __bool__(self):
        return bool(self.threads or self.processes or self.listening)

    def __sub__(self, other):
        return Belongings(
            self.threads - other.threads,
            self.processes - other.processes,
            self.listening - other.listening,
        )

    def __str__(self):
        threads = [f"thread {thread.name!r}" for thread in self.threads]
        processes = [f"process {process.pid} ({command_of(process)})" for process in self.processes]
        sockets = [f"socket that listens at {host}:{port}" for _, host, port in self.listening]
        return ", ".join([*threads, *processes, *sockets])


def left_since(before, known, seconds=20.0):
    """Returns what is there now and was not before, once it had so many seconds to end.

    Args:
        before: The ``Belongings`` before.
        known: Returns those that may stay.
        seconds: How long to wait for the others.
    """
    start = time.monotonic()
    collect_at = start + 0.03
    while (left := Belongings.now() - before - known()) and time.monotonic() < start + seconds:
        if time.monotonic() > collect_at:
            gc.collect()  # an iterator that nobody holds ends its threads
            collect_at = time.monotonic() + 0.2
        time.sleep(0.002)
    return left


def _children():
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return frozenset()  # known at a hundredth of the price
    return frozenset(child for child in _descendants(os.getpid()) if _runs_for_a_test(child))


def _descendants(pid):
    """Yields the child processes of a process, and theirs."""
    if not Path("/proc/self/task").exists():  # not Linux
        yield from psutil.Process(pid).children(recursive=True)
        return
    # psutil would read all of /proc: 5 ms a test. Processes and threads may end meanwhile.
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError, psutil.Error):
                children = Path(f"/proc/{pid}/task/{thread}/children").read_text()
                for child in map(int, children.split()):
                    yield psutil.Process(child)
                    yield from _descendants(child)


def _runs_for_a_test(child):
    command = command_of(child)
    return bool(command) and not any(helper in command for helper in _HELPERS)


def command_of(process):
    """Returns what a process runs; nothing if it has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _listening():
    connections = psutil.Process().net_connections("tcp")
    return frozenset(
        (connection.fd, *connection.laddr)
        for connection in connections
        if connection.status == psutil.CONN_LISTEN
    )
