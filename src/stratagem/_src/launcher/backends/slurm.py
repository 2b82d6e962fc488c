"""``SlurmBackend``: runs a job in a Slurm allocation, or submits it with ``sbatch``."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from stratagem._src.cluster.address import Address
from stratagem._src.cluster.environment_variables import is_set
from stratagem._src.cluster.errors import LaunchError
from stratagem._src.cluster.reserved_ports import ReservedPorts
from stratagem._src.launcher.backends.slurm_batch import (
    batch_script,
    requeue,
    submit_and_follow,
)
from stratagem._src.launcher.backends.slurm_options import SlurmOptions
from stratagem._src.launcher.backends.slurm_step import StepStarter, step_command
from stratagem._src.launcher.console import Console
from stratagem._src.launcher.job_description import JobDescription
from stratagem._src.launcher.rendezvous import Rendezvous
from stratagem._src.launcher.rendezvous_job import lead_job
from stratagem._src.launcher.signal_pipe import SignalPipe
from stratagem._src.process.private_files import make_private_directory
from stratagem._src.transport import Credentials
from stratagem._src.transport.secret import FILE_VARIABLE, SECRET_VARIABLE, new_secret

__all__ = ["SlurmBackend", "private_secret_file"]

_TERMINATED = 128 + signal.SIGTERM


@dataclass(frozen=True)
class SlurmBackend:
    """Submits a job, or runs it if this process is in an allocation already.

    The submitted batch script runs the same command: in the allocation it writes a secret to a file that
    only its owner can read, and starts one step with all tasks.
    """

    options: SlurmOptions

    def preview(self, job: JobDescription) -> str:
        """Returns the batch script, or inside an allocation the command of the step."""
        if not is_set("SLURM_JOB_ID"):
            return batch_script(job, self.options)
        return shlex.join(step_command(job, Address(_own_host(), 0), self.options.start_seconds))

    def run(self, job: JobDescription, console: Console) -> int:
        """Runs the job and returns its exit code."""
        job.program.check_here()
        if not is_set("SLURM_JOB_ID"):
            return submit_and_follow(job, self.options, console)
        return self._run_in_allocation(job, console)

    def _run_in_allocation(self, job: JobDescription, console: Console) -> int:
        secret = new_secret()
        tasks = list(job.all_tasks())
        host = _own_host()
        with (
            ReservedPorts(1, host) as ports,
            private_secret_file(self.options.secret_dir(), secret) as file,
        ):
            endpoint = Address(host, *ports)
            environment = {**os.environ, FILE_VARIABLE: str(file)}
            environment.pop(SECRET_VARIABLE, None)
            rendezvous = Rendezvous(
                endpoint,
                len(tasks) + 1,
                0,
                self.options.start_seconds,
                Credentials(secret, Credentials.from_environment().tls),
                ("the launcher", *map(str, tasks)),
            )
            command = step_command(job, endpoint, self.options.start_seconds)
            starter = StepStarter(command, environment, console)
            result = lead_job(rendezvous, starter, console, SignalPipe(), job.rules, job.monitoring)
        code = result.exit_code
        if self.options.requeue and code == _TERMINATED:
            requeue(os.environ["SLURM_JOB_ID"], console)
        return code


def _own_host() -> str:
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


@contextlib.contextmanager
def private_secret_file(folder: Path, secret: str) -> Iterator[Path]:
    """Writes a secret to a file that only this user can read, and removes the file at the end.

    Args:
        folder: The directory, which the nodes of the job share; created if it does not exist.
        secret: The content of the file.

    Raises:
        LaunchError: If the file cannot be created.
    """
    try:
        make_private_directory(folder)
        own = tempfile.TemporaryDirectory(prefix="job-", dir=folder)  # mode 0700
    except OSError as error:
        raise LaunchError(
            f"The job's secret must be in a file that its nodes can read, but {folder} is not "
            f"writable ({error.strerror}). Choose another directory with --shared-dir."
        ) from None
    with own as name:
        path = Path(name) / "secret"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(secret)
        yield path
