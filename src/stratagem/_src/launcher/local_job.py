"""``run_local_job``: runs a cluster on this machine."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import secrets
import time
from dataclasses import dataclass

from stratagem._src.launcher.console import Console
from stratagem._src.launcher.event_loop import EventLoop
from stratagem._src.launcher.events import Interrupted
from stratagem._src.launcher.job_dispatcher import JobDispatcher
from stratagem._src.launcher.job_monitor import monitor_job
from stratagem._src.launcher.job_rules import JobRules
from stratagem._src.launcher.job_state import JobPhase, JobState
from stratagem._src.launcher.monitoring_options import NO_MONITORING, MonitoringOptions
from stratagem._src.launcher.node_runner import JobNode, NodeRunner
from stratagem._src.launcher.signal_pipe import SignalPipe
from stratagem._src.launcher.task_counts import TaskCounts
from stratagem._src.launcher.task_exit import TaskExit
from stratagem._src.launcher.task_program import TaskProgram
from stratagem._src.transport.secret import job_secret, new_secret

__all__ = ["Deadline", "JobResult", "finish", "new_job_id", "run_local_job"]

_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Deadline:
    """The time limit of a job, and the signal that its tasks receive when it passes."""

    seconds: float
    signal: int


@dataclass(frozen=True)
class JobResult:
    """How a job ended.

    Attributes:
        exit_code: 0, the exit code of the first task that failed, or 128 + N if signal N ended the job.
        exits: How the tasks of this node exited in the last attempt, in the order they exited.
        timed_out: Whether its deadline passed.
    """

    exit_code: int
    exits: tuple[TaskExit, ...]
    timed_out: bool = False


def run_local_job(
    counts: TaskCounts,
    program: TaskProgram,
    console: Console,
    *,
    rules: JobRules,
    deadline: Deadline | None = None,
    signals: SignalPipe | None = None,
    monitoring: MonitoringOptions = NO_MONITORING,
) -> JobResult:
    """Runs every task on this machine and returns when all of them have exited.

    Args:
        counts: The number of tasks of each job.
        program: What they run.
        console: Shows their output.
        rules: What happens when a task fails.
        deadline: The time limit of the job, if any.
        signals: Signals that end the job.
        monitoring: How the job is monitored.
    """
    secret_of = functools.partial(job_secret, new_secret())
    with contextlib.ExitStack() as stack:
        monitor = stack.enter_context(monitor_job(monitoring, _LOOPBACK, secret_of, console))
        loop = stack.enter_context(EventLoop())
        state = JobState(1, rules, new_job_id, collector=monitor.address)
        dispatcher = JobDispatcher(state, monitor.record)
        node = JobNode(0, _LOOPBACK, counts)
        runner = NodeRunner(loop, node, program, dispatcher.report, secret_of, console)
        stack.enter_context(runner)
        dispatcher.add_node(0, runner.obey)
        if signals is not None:
            stack.enter_context(signals).attach(loop, dispatcher.report)
        timed_out = False

        def end_late_job(number: int) -> None:
            nonlocal timed_out
            if dispatcher.state.phase is JobPhase.RUNNING:
                timed_out = True
                dispatcher.report(Interrupted(number))

        if deadline is not None:
            moment = time.monotonic() + deadline.seconds
            loop.call_at(moment, functools.partial(end_late_job, deadline.signal))
        runner.join()
        return dataclasses.replace(finish(loop, runner), timed_out=timed_out)


def new_job_id() -> str:
    """Returns a unique id for an attempt."""
    return secrets.token_hex(16)


def finish(loop: EventLoop, runner: NodeRunner) -> JobResult:
    """Runs the loop until the job orders this node to finish."""
    while runner.finished is None:
        loop.run_once()
    return JobResult(runner.finished.exit_code, tuple(runner.exits))
