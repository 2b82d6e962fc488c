"""The Slurm step that runs all tasks of a job: its command, and the starter that runs it."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Self

from stratagem._src.cluster.address import Address
from stratagem._src.launcher.console import Console
from stratagem._src.launcher.event_loop import EventLoop
from stratagem._src.launcher.job_description import JobDescription
from stratagem._src.launcher.job_flags import job_flags
from stratagem._src.launcher.scheduler_process import SchedulerProcess
from stratagem._src.launcher.task_exit import exit_code_of

__all__ = ["StepStarter", "step_command", "task_options"]

_SHUTDOWN_TIMEOUT = 10.0
# Time for the launcher to notice that the nodes are gone and to decide what to do.
_DECISION_TIMEOUT = 2.0


def task_options(job: JobDescription) -> list[str]:
    """Returns the options, for both ``sbatch`` and ``srun``, that request the tasks of a job."""
    resources = job.resources
    options = [f"--ntasks={len(list(job.all_tasks()))}"]
    options += [] if resources.cpus is None else [f"--cpus-per-task={resources.cpus}"]
    if resources.memory_bytes is not None:
        per_cpu = -(-resources.memory_bytes // (2**20 * (resources.cpus or 1)))
        options.append(f"--mem-per-cpu={per_cpu}M")
    # Slurm gives every task of a step the same resources; parameter servers do not use their GPUs.
    return options if resources.gpus is None else [*options, f"--gpus-per-task={resources.gpus}"]


def step_command(job: JobDescription, endpoint: Address, start_seconds: float) -> list[str]:
    """Returns the command of a step in which every task of the job is a node.

    The launcher's rules apply, not those of ``srun``: a task that fails does not end the step.
    """
    node = [sys.executable, "-m", "stratagem", "run", "--on=hosts", "--task=by-rank", "--led"]
    node += [f"--rdzv-endpoint={endpoint}", f"--rdzv-timeout={start_seconds:g}"]
    srun = ["srun", *task_options(job), "--kill-on-bad-exit=0", "--mpi=none", "--input=none"]
    return [*srun, *node, *job_flags(job)]


class StepStarter:
    """Runs the step, and a new step if nodes are lost and the job restarts.

    Args:
        command: The command of the step.
        environment: The complete environment of the command.
        console: Shows the output of the tasks.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], console: Console
    ) -> None:
        self._command = command
        self._environment = environment
        self._console = console
        self._step: SchedulerProcess | None = None
        self._restart_requested = False

    def start(self, loop: EventLoop, give_up: Callable[[str], None]) -> None:
        """Starts the step."""
        self._loop = loop
        self._give_up = give_up
        self._restart_requested = False
        self._step = SchedulerProcess(
            loop, self._command, self._environment, self._console, self._ended
        )

    def rejoin(self, lost: list[int]) -> None:
        """Starts a new step if nodes of this one are lost: Slurm does not restart single tasks."""
        if not lost or self._step is None:
            return
        self._restart_requested = True
        if self._step.is_over:
            self.start(self._loop, self._give_up)
        else:
            self._step.stop(signal.SIGTERM, _SHUTDOWN_TIMEOUT)

    def _ended(self, returncode: int) -> None:
        if self._restart_requested:
            self.start(self._loop, self._give_up)
            return
        step = self._step

        def give_up() -> None:
            if self._step is step:
                code = exit_code_of(returncode)
                self._give_up(f"the Slurm step ended with exit code {code} before the job was done")

        self._loop.call_at(time.monotonic() + _DECISION_TIMEOUT, give_up)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._step is None:
            return
        self._restart_requested = False
        self._wait()
        if not self._step.is_over:
            self._step.stop(signal.SIGTERM, _SHUTDOWN_TIMEOUT)
            self._wait()
        self._step.close()

    def _wait(self) -> None:
        """Waits for the end of the step, or until a timeout."""
        assert self._step is not None
        deadline = time.monotonic() + _SHUTDOWN_TIMEOUT
        self._loop.call_at(deadline, lambda: None)
        while not self._step.is_over and time.monotonic() < deadline:
            self._loop.run_once()
