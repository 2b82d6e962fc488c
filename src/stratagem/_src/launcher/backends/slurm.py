"""``SlurmBackend``: a job in an allocation of Slurm, which it asks for if there is none."""

from __future__ import annotations

import os
import shlex
import signal
import socket
from dataclasses import dataclass

from stratagem._src.cluster.address import Address
from stratagem._src.cluster.environment_variables import is_set
from stratagem._src.cluster.held_ports import HeldPorts
from stratagem._src.launcher.backends.slurm_batch import (
    batch_script,
    queue_again,
    submit_and_follow,
)
from stratagem._src.launcher.backends.slurm_options import SlurmOptions
from stratagem._src.launcher.backends.slurm_step import StepStarter, step_command
from stratagem._src.launcher.console import Console
from stratagem._src.launcher.job_description import JobDescription
from stratagem._src.launcher.private_file import private_secret_file
from stratagem._src.launcher.rendezvous import Rendezvous
from stratagem._src.launcher.rendezvous_job import lead_job
from stratagem._src.launcher.signal_pipe import SignalPipe
from stratagem._src.transport import Credentials
from stratagem._src.transport.secret import FILE_VARIABLE, SECRET_VARIABLE, new_secret

__all__ = ["SlurmBackend"]

_TERMINATED = 128 + signal.SIGTERM


@dataclass(frozen=True)
class SlurmBackend:
    """Submits a job, or runs it where this process is in an allocation already.

    What is submitted is the same command: it runs in the allocation, makes a secret in a file for its
    owner only, and starts one step with all tasks.
    """

    options: SlurmOptions

    def preview(self, job: JobDescription) -> str:
        """Returns the batch script, or in an allocation the command of the step."""
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
            HeldPorts(1, host) as ports,
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
            result = lead_job(
                rendezvous, starter, console, SignalPipe(), job.rules, job.observation
            )
        code = result.exit_code
        if self.options.requeue and code == _TERMINATED:
            queue_again(os.environ["SLURM_JOB_ID"], console)
        return code


def _own_host() -> str:
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()
