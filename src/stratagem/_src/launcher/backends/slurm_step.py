"""The step of a Slurm allocation that runs all tasks of a job: its command, and who starts it."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Self

from stratagem._src.cluster.address import Address
from stratagem._src.launcher.console import Console
from stratagem._src.launcher.job_description import JobDescription
from stratagem._src.launcher.job_flags import job_flags
from stratagem._src.launcher.passed_through import PassedThroughProcess
from stratagem._src.launcher.task_ending import exit_code_of
from stratagem._src.launcher.task_loop import TaskLoop

__all__ = ["StepStarter", "step_command", "task_options"]

_SECONDS_TO_LEAVE = 10.0
# Within them the launcher has heard that the nodes are gone, and decided what follows.
_SECONDS_TO_DECIDE = 2.0


def task_options(job: JobDescription) -> list[str]:
    """Returns the options, of ``sbatch`` and ``srun`` alike, that ask for the tasks of a job."""
    resources = job.resources
    options = [f"--ntasks={len(list(job.all_tasks()))}"]
    options += [] if resources.cpus is None else [f"--cpus-per-task={resources.cpus}"]
    if resources.memory_bytes is not None:
        per_cpu = -(-resources.memory_bytes // (2**20 * (resources.cpus or 1)))
        options.append(f"--mem-per-cpu={per_cpu}M")
    # Slurm gives every task of a step the same; servers leave theirs alone.
    return options if resources.gpus is None else [*options, f"--gpus-per-task={resources.gpus}"]


def step_command(job: JobDescription, endpoint: Address, start_seconds: float) -> list[str]:
    """Returns the command of a step in which every task of the job is a node.

    The rules of the launcher hold, not those of ``srun``: a task that fails does not end the step.
    """
    node = [sys.executable, "-m", "stratagem", "run", "--on=hosts", "--task=by-rank", "--led"]
    node += [f"--rdzv-endpoint={endpoint}", f"--rdzv-timeout={start_seconds:g}"]
    srun = ["srun", *task_options(job), "--kill-on-bad-exit=0", "--mpi=none", "--input=none"]
    return [*srun, *node, *job_flags(job)]


class StepStarter:
    """Runs the step, and another one where nodes of it are lost and the job starts again.

    Args:
        command: The command of the step.
        environment: Its whole environment.
        console: Where the output of the tasks goes.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], console: Console
    ) -> None:
        self._command = command
        self._environment = environment
        self._console = console
        self._step: PassedThroughProcess | None = None
        self._is_wanted_again = False

    def start(self, loop: TaskLoop, give_up: Callable[[str], None]) -> None:
        """Starts the step."""
        self._loop = loop
        self._give_up = give_up
        self._is_wanted_again = False
        self._step = PassedThroughProcess(
            loop, self._command, self._environment, self._console, self._ended
        )

    def join_again(self, lost: list[int]) -> None:
        """Starts another step if nodes of this one are lost: Slurm does not start single tasks again."""
        if not lost or self._step is None:
            return
        self._is_wanted_again = True
        if self._step.is_over:
            self.start(self._loop, self._give_up)
        else:
            self._step.stop(signal.SIGTERM, _SECONDS_TO_LEAVE)

    def _ended(self, returncode: int) -> None:
        if self._is_wanted_again:
            self.start(self._loop, self._give_up)
            return
        step = self._step

        def give_up() -> None:
            if self._step is step:
                code = exit_code_of(returncode)
                self._give_up(f"the Slurm step ended with exit code {code} before the job was done")

        self._loop.call_at(time.monotonic() + _SECONDS_TO_DECIDE, give_up)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._step is None:
            return
        self._is_wanted_again = False
        self._wait()
        if not self._step.is_over:
            self._step.stop(signal.SIGTERM, _SECONDS_TO_LEAVE)
            self._wait()
        self._step.close()

    def _wait(self) -> None:
        """Waits for the end of the step, for some seconds at most."""
        assert self._step is not None
        deadline = time.monotonic() + _SECONDS_TO_LEAVE
        self._loop.call_at(deadline, lambda: None)
        while not self._step.is_over and time.monotonic() < deadline:
            self._loop.run_once()
