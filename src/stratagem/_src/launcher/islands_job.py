"""Runs the islands of a job: all on this machine, each with its own launcher, or one on any back end."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import sys
from pathlib import Path

from stratagem._src.cluster.address import Address
from stratagem._src.cluster.environment_variables import is_set
from stratagem._src.cluster.errors import LaunchError
from stratagem._src.cluster.leadership import Task
from stratagem._src.control_plane.island_server.island_messages import (
    COUNT_VARIABLE,
    ISLAND_VARIABLE,
    SECRET_FILE_VARIABLE,
    SECRET_VARIABLE,
    SERVER_VARIABLE,
    read_island_secret,
)
from stratagem._src.control_plane.island_server.island_server import IslandServer
from stratagem._src.launcher.backends.backend import task_program
from stratagem._src.launcher.console import Console
from stratagem._src.launcher.event_loop import EventLoop
from stratagem._src.launcher.events import Interrupted, Report
from stratagem._src.launcher.job_description import JobDescription
from stratagem._src.launcher.job_flags import job_flags
from stratagem._src.launcher.signal_pipe import SignalPipe
from stratagem._src.launcher.task_exit import exit_code_of
from stratagem._src.launcher.task_output import TaskOutput
from stratagem._src.launcher.task_process import TaskProcess
from stratagem._src.transport import Credentials
from stratagem._src.transport.secret import new_secret

__all__ = ["check_islands", "island_flags", "one_island", "run_islands"]

_SIGNALLED = 128
_RESTART_EXIT_CODE = 75
_LAUNCHER_GRACE_SECONDS = 5.0


def run_islands(job: JobDescription, num_islands: int, console: Console) -> int:
    """Runs a job as several islands, with their island server, and returns its exit code.

    An island is lost if a signal ended one of its tasks. It is restarted while the others continue. An
    island whose program fails ends the job.

    Args:
        job: What each island runs.
        num_islands: The number of islands.
        console: Shows their output.

    Raises:
        LaunchError: If the job cannot run here. Nothing has been started then.
    """
    check_islands(job, num_islands)
    with contextlib.ExitStack() as stack:
        loop = stack.enter_context(EventLoop())
        secret = new_secret()
        server = IslandServer(
            "127.0.0.1:0",
            num_islands,
            Credentials(secret=secret),
            log=lambda text: loop.call_soon(lambda: console.message(text)),
        )
        server.start()
        stack.callback(server.shutdown)
        variables = {
            COUNT_VARIABLE: str(num_islands),
            SERVER_VARIABLE: server.address,
            SECRET_VARIABLE: secret,
        }
        islands = _Islands(job, num_islands, variables, loop, console)
        stack.callback(islands.close)
        stack.enter_context(SignalPipe()).attach(loop, islands.handle)
        islands.start_all()
        while islands.exit_code is None:
            loop.run_once()
        return islands.exit_code


def check_islands(job: JobDescription, num_islands: int) -> None:
    """Checks that a job can run as islands.

    Raises:
        LaunchError: If not.
    """
    _check_island(job, num_islands)
    if job.dashboard:
        raise LaunchError(
            "--dashboard cannot be used with --islands: each island is a separate job. Leave it out."
        )


def _check_island(job: JobDescription, num_islands: int) -> None:
    if num_islands < 1:
        raise LaunchError(f"--islands must be at least 1, got {num_islands}.")
    refused = {
        "--ps": job.tasks.ps,
        "--evaluator": job.tasks.evaluator,
        "--workers MIN:N": job.rules.min_workers,
    }
    for flag, given in refused.items():
        if given:
            raise LaunchError(
                f"{flag} cannot be used with --islands: each island is a synchronous job with a fixed "
                "number of workers. Leave it out."
            )


def island_flags(job: JobDescription, island: int) -> list[str]:
    """Returns the flags of ``stratagem run`` for one island, with its own log and event files.

    >>> from stratagem._src.launcher.islands_job import island_flags
    >>> from stratagem._src.launcher.job_description import JobDescription
    >>> from stratagem._src.launcher.python_program import PythonProgram
    >>> island_flags(JobDescription(PythonProgram("train.py"), log_dir="logs"), 1)
    ['--name=train', '--workers=1', '--log-dir=logs/island-1', 'train.py']
    """
    log_dir = None if job.log_dir is None else str(Path(job.log_dir) / f"island-{island}")
    events = None if job.events is None else f"{job.events}.island-{island}"
    # The job's limit counts restarts of lost islands, not of their workers.
    rules = dataclasses.replace(job.rules, max_worker_restarts=10)
    return job_flags(dataclasses.replace(job, log_dir=log_dir, events=events, rules=rules))


def one_island(
    job: JobDescription, island: int, num_islands: int, server: str, inherits: bool
) -> JobDescription:
    """Returns the job of one island, for any back end; the island server runs already.

    Args:
        job: What each island runs.
        island: The index of this island.
        num_islands: The number of islands.
        server: ``host:port`` of ``stratagem island-server``.
        inherits: Whether tasks inherit the environment directly from this process. A scheduler stores
            environments where others can read them, so there the secret must be in a file.

    Raises:
        LaunchError: If the job cannot run as an island.
        EnvironmentVariableError: If there is no shared secret of the islands.
    """
    _check_island(job, num_islands)
    if not 0 <= island < num_islands:
        raise LaunchError(
            f"--island must be from 0 to --islands - 1, got {island} of {num_islands}."
        )
    read_island_secret()
    variables = {
        COUNT_VARIABLE: str(num_islands),
        ISLAND_VARIABLE: str(island),
        SERVER_VARIABLE: str(Address.parse(server)),
    }
    if is_set(SECRET_FILE_VARIABLE):
        variables[SECRET_FILE_VARIABLE] = os.environ[SECRET_FILE_VARIABLE]
    if not inherits and is_set(SECRET_VARIABLE):
        raise LaunchError(
            f"The secret of islands must be in a file where a scheduler starts the tasks, got "
            f"{SECRET_VARIABLE}. Unset it, and set {SECRET_FILE_VARIABLE} to a path that every task sees."
        )
    suffix = f"-island-{island}"
    name = job.name[: 40 - len(suffix)].rstrip("-") + suffix
    environment = {**job.environment, **variables}
    return dataclasses.replace(job, name=name, environment=environment)


class _Islands:
    """Runs the launchers of the islands as child processes.

    Attributes:
        exit_code: The exit code of the job, once it has ended.
    """

    def __init__(
        self,
        job: JobDescription,
        num_islands: int,
        variables: dict[str, str],
        loop: EventLoop,
        console: Console,
    ) -> None:
        self.exit_code: int | None = None
        self._job = job
        self._variables = variables
        self._loop = loop
        self._console = console
        self._restarts = [0] * num_islands
        self._running: dict[int, TaskProcess] = {}
        self._has_succeeded = False
        self._code: int | None = None
        task_program(job)  # validates the job before anything starts
        console.expect([Task("island", island) for island in range(num_islands)])

    def start_all(self) -> None:
        """Starts every island."""
        for island in range(len(self._restarts)):
            self._start(island)

    def handle(self, report: Report) -> None:
        """Handles a signal to this process."""
        number = getattr(report, "signal", signal.SIGTERM)
        if isinstance(report, Interrupted):
            is_insisting = self._code is not None and number == signal.SIGINT
            self._end_all(exit_code_of(-number), signal.SIGKILL if is_insisting else number)
            return
        for running in self._running.values():
            running.process.send_signal(number)

    def close(self) -> None:
        """Kills the islands that still run."""
        for running in self._running.values():
            running.process.stop(signal.SIGKILL, 0.0)
        while self._running:
            self._running.popitem()[1].close()

    def _start(self, island: int) -> None:
        flags = island_flags(self._job, island)
        command = [sys.executable, "-m", "stratagem", "run", "--on=local", *flags]
        environment = {**os.environ, **self._variables, ISLAND_VARIABLE: str(island)}
        output = TaskOutput(Task("island", island), self._console, None)
        self._running[island] = TaskProcess(
            command, environment, self._loop, output, lambda: self._ended(island)
        )

    def _ended(self, island: int) -> None:
        running = self._running.pop(island)
        running.close()
        code = exit_code_of(running.returncode)
        if self._code is None and code:
            self._lost_or_failed(island, code)
        elif code == 0:
            self._has_succeeded = True
        if not self._running:
            self.exit_code = self._final_code(code)

    def _final_code(self, last: int) -> int:
        if self._code is not None:
            return self._code
        return 0 if self._has_succeeded else last

    def _lost_or_failed(self, island: int, code: int) -> None:
        if code <= _SIGNALLED and code != _RESTART_EXIT_CODE:
            self._console.message(f"island {island} failed with exit code {code}; stopping all")
            self._end_all(code, signal.SIGTERM)
        elif self._has_succeeded:
            # The islands that could send it their state have exited: it would train from the beginning.
            self._console.message(
                f"island {island} was lost (exit code {code}) after another finished; not restarting it"
            )
        elif self._restarts[island] < self._job.rules.max_worker_restarts:
            self._restarts[island] += 1
            self._console.message(f"island {island} was lost (exit code {code}); restarting it")
            self._start(island)
        else:
            self._console.message(
                f"island {island} was lost (exit code {code}); no restarts are left"
            )

    def _end_all(self, code: int, number: int) -> None:
        self._code = code if self._code is None else self._code
        for running in self._running.values():
            running.process.stop(number, self._job.rules.grace_seconds + _LAUNCHER_GRACE_SECONDS)
