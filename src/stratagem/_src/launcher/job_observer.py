"""``JobObserver``: what a launcher knows of its job, for whoever observes it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from stratagem._src.cluster.address import Address
from stratagem._src.cluster.loopback import loopback_address
from stratagem._src.core.errors import PermissionDeniedError
from stratagem._src.launcher.console import Console
from stratagem._src.launcher.events import (
    Finish,
    JoinAgain,
    NodeLost,
    Order,
    Report,
    Start,
    StartAgain,
    TakeUpAgain,
    TaskEnded,
)
from stratagem._src.launcher.failure_report import failure_excerpt
from stratagem._src.launcher.observation_options import ObservationOptions
from stratagem._src.launcher.task_ending import TaskEnding
from stratagem._src.telemetry.monitoring.collector import Collector
from stratagem._src.telemetry.monitoring.dashboard.dashboard_server import DashboardServer
from stratagem._src.telemetry.monitoring.observed_jobs import ObservedJob, announce_job
from stratagem._src.telemetry.monitoring.open_telemetry import OpenTelemetryMetrics

__all__ = ["OBSERVATION", "JobObserver", "observe_job"]

OBSERVATION = "observation"
"""The id from which the secret of the collector is made, as that of an attempt from the attempt's."""
_DASHBOARD = "dashboard"


class JobObserver:
    """Tells a collector what the launcher hears and orders; without one, nothing.

    Args:
        collector: Who takes it in, if the job is observed.
        name_of_node: What a node is called.
    """

    def __init__(
        self,
        collector: Collector | None = None,
        name_of_node: Callable[[int], str] = "node {}".format,
    ) -> None:
        self._collector = collector
        self._name_of_node = name_of_node
        self._is_over = False

    @property
    def address(self) -> str:
        """Where tasks tell of themselves; empty if the job is not observed."""
        return "" if self._collector is None else self._collector.address

    def observe(self, happened: Report | Order) -> None:
        """Takes in a report or an order."""
        if self._collector is None or self._is_over:  # at the end every node leaves
            return
        note = self._collector.note
        match happened:
            case Start():
                tasks = [str(task) for task in happened.plan.all_tasks]
                note("attempt_started", attempt=happened.attempt, tasks=tasks)
            case StartAgain():
                note("task_started", task=str(happened.task), reason=happened.reason)
            case TakeUpAgain():
                for task in happened.start.plan.tasks[happened.node]:
                    note("task_started", task=str(task), reason=happened.reason)
            case TaskEnded():
                ending = happened.ending
                note(
                    "task_ended",
                    task=str(ending.task),
                    exit_code=ending.exit_code,
                    failed=ending.failed,
                    text=_describe(ending),
                )
            case NodeLost():
                name = self._name_of_node(happened.node)
                note("note", kind="error", text=f"The launcher of {name} is gone.")
            case JoinAgain():
                text = f"{happened.reason}; restart {happened.attempt} of the job"
                note("note", kind="recovery", text=text)
            case Finish():
                self._is_over = True
                note("job_ended", exit_code=happened.exit_code, text=happened.message)


def _describe(ending: TaskEnding) -> str:
    if not ending.failed:
        return ending.describe()
    return f"{ending.describe()}\n{failure_excerpt(ending.output)}".rstrip()


@contextlib.contextmanager
def observe_job(
    options: ObservationOptions,
    host: str,
    secret_of: Callable[[str], str],
    console: Console,
    name_of_node: Callable[[int], str] = "node {}".format,
) -> Iterator[JobObserver]:
    """Observes a job as its options say, until the end of the block.

    Args:
        options: What is wanted; perhaps nothing.
        host: By which its tasks reach this machine.
        secret_of: Gives a secret of the job by an id.
        console: Where it is said how to look at the job.
        name_of_node: What a node is called.

    Raises:
        LaunchError: If what is wanted cannot be.
    """
    if not options.is_wanted:
        yield JobObserver()
        return
    events = None if options.events is None else Path(options.events)
    with contextlib.ExitStack() as stack:
        collector = stack.enter_context(
            Collector(host, secret_of(OBSERVATION), events, console.own_message)
        )
        collector.note("job_started", name=options.name)
        if options.dashboard is not None:
            address = Address.parse(options.dashboard)
            server = DashboardServer(address, collector.view, secret_of(_DASHBOARD))
            link = stack.enter_context(server).link
            if server.is_local:
                where = f" (on {host})" if loopback_address(host) is None else ""
                console.message(f"dashboard: {link}{where}")
            else:
                console.private_message(f"dashboard: {link}")
            _announce(stack, ObservedJob.of_this_process(options.name, link), console)
        if options.opentelemetry:
            stack.enter_context(OpenTelemetryMetrics(options.name, collector.view))
        yield JobObserver(collector, name_of_node)


def _announce(stack: contextlib.ExitStack, job: ObservedJob, console: Console) -> None:
    try:
        stack.enter_context(announce_job(job))
    except (OSError, PermissionDeniedError) as error:
        console.message(f"'stratagem top' finds this job by its link only: {error}")
