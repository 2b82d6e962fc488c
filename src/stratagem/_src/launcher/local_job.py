"""``run_local_job``: a whole cluster on this machine."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import secrets
import time
from dataclasses import dataclass

from stratagem._src.launcher.console import Console
from stratagem._src.launcher.events import Interrupted
from stratagem._src.launcher.job_host import JobHost
from stratagem._src.launcher.job_observer import observe_job
from stratagem._src.launcher.job_rules import JobRules
from stratagem._src.launcher.job_state import JobPhase, JobState
from stratagem._src.launcher.node_runner import JobNode, NodeRunner
from stratagem._src.launcher.observation_options import NOT_OBSERVED, ObservationOptions
from stratagem._src.launcher.signal_pipe import SignalPipe
from stratagem._src.launcher.task_counts import TaskCounts
from stratagem._src.launcher.task_ending import TaskEnding
from stratagem._src.launcher.task_loop import TaskLoop
from stratagem._src.launcher.task_program import TaskProgram
from stratagem._src.transport.secret import job_secret, new_secret

__all__ = ["Deadline", "JobResult", "finish", "new_job_id", "run_local_job"]

_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Deadline:
    """When a job has to be over, and the signal that its tasks get if it is not."""

    seconds: float
    signal: int


@dataclass(frozen=True)
class JobResult:
    """How a job ended.

    Attributes:
        exit_code: 0, or that of the first task that failed, or 128 and the signal that ended it.
        endings: How every task of this node did in the last attempt, in the order they ended.
        timed_out: Whether its deadline passed.
    """

    exit_code: int
    endings: tuple[TaskEnding, ...]
    timed_out: bool = False


def run_local_job(
    counts: TaskCounts,
    program: TaskProgram,
    console: Console,
    *,
    rules: JobRules,
    deadline: Deadline | None = None,
    signals: SignalPipe | None = None,
    observation: ObservationOptions = NOT_OBSERVED,
) -> JobResult:
    """Runs every task on this machine and returns when all of them are gone.

    Args:
        counts: How many tasks of each job there are.
        program: What they run.
        console: Where their output is shown.
        rules: What happens when a task fails.
        deadline: When the job has to be over, if ever.
        signals: Signals that end the job.
        observation: How it is observed.
    """
    secret_of = functools.partial(job_secret, new_secret())
    with contextlib.ExitStack() as stack:
        observer = stack.enter_context(observe_job(observation, _LOOPBACK, secret_of, console))
        loop = stack.enter_context(TaskLoop())
        state = JobState(1, rules, new_job_id, collector=observer.address)
        host = JobHost(state, observer.observe)
        node = JobNode(0, _LOOPBACK, counts)
        runner = NodeRunner(loop, node, program, host.report, secret_of, console)
        stack.enter_context(runner)
        host.add_node(0, runner.obey)
        if signals is not None:
            stack.enter_context(signals).attach(loop, host.report)
        timed_out = False

        def end_late_job(number: int) -> None:
            nonlocal timed_out
            if host.state.phase is JobPhase.RUNNING:
                timed_out = True
                host.report(Interrupted(number))

        if deadline is not None:
            moment = time.monotonic() + deadline.seconds
            loop.call_at(moment, functools.partial(end_late_job, deadline.signal))
        runner.join()
        return dataclasses.replace(finish(loop, runner), timed_out=timed_out)


def new_job_id() -> str:
    """Returns the id of an attempt, which no other has."""
    return secrets.token_hex(16)


def finish(loop: TaskLoop, runner: NodeRunner) -> JobResult:
    """Runs the loop until the job orders this node to finish."""
    while runner.finished is None:
        loop.run_once()
    return JobResult(runner.finished.exit_code, tuple(runner.endings))
