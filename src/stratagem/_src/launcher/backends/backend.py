"""``Backend``: the protocol of the back ends that run a job."""

from __future__ import annotations

import errno
import json
import os
import sys
from pathlib import Path
from typing import Protocol

from stratagem._src.cluster.elastic_environment import elastic_variables
from stratagem._src.cluster.errors import LaunchError
from stratagem._src.launcher.console import Console
from stratagem._src.launcher.job_description import JobDescription
from stratagem._src.launcher.task_program import TaskProgram
from stratagem._src.process.private_files import make_private_directory

__all__ = ["Backend", "description_text", "refuse_resources", "task_program"]


class Backend(Protocol):
    """Runs jobs on this machine, on bare hosts, or with a scheduler."""

    def preview(self, job: JobDescription) -> str:
        """Returns what ``run`` would start or submit, as text.

        Raises:
            LaunchError: If the job cannot run here.
        """

    def run(self, job: JobDescription, console: Console) -> int:
        """Runs a job to its end, shows the output of its tasks, and returns its exit code.

        Raises:
            LaunchError: If the job cannot run here. Nothing has been started then.
        """


def description_text(job: JobDescription) -> str:
    """Returns a job description as indented JSON."""
    return json.dumps(job.to_json(), indent=2)


def refuse_resources(job: JobDescription, backend: str) -> None:
    """Raises ``LaunchError`` if a job requests resources from a back end without a scheduler."""
    if job.resources.given:
        raise LaunchError(
            f"{' and '.join(job.resources.given)} must be left out with --on {backend}: it does not "
            "partition the machine between tasks. Use a scheduler, or limit the command itself."
        )


def task_program(job: JobDescription) -> TaskProgram:
    """Returns the program of the tasks that this process starts; creates their log directory."""
    job.program.check_here()
    log_dir = None if job.log_dir is None else Path(job.log_dir)
    if log_dir is not None:
        _make_writable(log_dir)
    return TaskProgram(
        job.program.command(sys.executable),
        {**os.environ, **job.environment, **elastic_variables(job.rules.min_workers)},
        job.devices_per_worker,
        job.quiet,
        log_dir,
    )


def _make_writable(log_dir: Path) -> None:
    reason: str | None = None
    try:
        make_private_directory(log_dir)
        if not os.access(log_dir, os.W_OK | os.X_OK):
            reason = os.strerror(errno.EACCES)
    except OSError as error:
        reason = error.strerror
    if reason is not None:
        raise LaunchError(
            f"--log-dir must be a writable directory, got {log_dir} ({reason}). Use another one."
        )
