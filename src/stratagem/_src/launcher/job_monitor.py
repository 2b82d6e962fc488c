"""``JobMonitor``: records the reports and orders of a job for its dashboard, event file and metrics."""

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
    NodeLost,
    Order,
    Rejoin,
    Report,
    RestartNode,
    RestartTask,
    Start,
    TaskEnded,
)
from stratagem._src.launcher.failure_report import failure_excerpt
from stratagem._src.launcher.monitoring_options import MonitoringOptions
from stratagem._src.launcher.task_exit import TaskExit
from stratagem._src.telemetry.monitoring.collector import Collector
from stratagem._src.telemetry.monitoring.dashboard.dashboard_server import DashboardServer
from stratagem._src.telemetry.monitoring.monitored_jobs import MonitoredJob, announce_job
from stratagem._src.telemetry.monitoring.open_telemetry import OpenTelemetryMetrics
from stratagem._src.telemetry.monitoring.task_logs import TaskLogs

__all__ = ["MONITORING_SECRET_ID", "JobMonitor", "monitor_job"]

MONITORING_SECRET_ID = "observation"
"""The id from which the collector's secret is derived, as an attempt's secret is from the attempt's id."""
_DASHBOARD_SECRET_ID = "dashboard"
_NOT_ENCRYPTED = (
    "The dashboard is not encrypted: others in the network can read the link. Use --dashboard-certfile, or "
    "leave the dashboard on loopback and reach it by 'ssh -L'."
)


class JobMonitor:
    """Records the launcher's reports and orders in a collector, if there is one.

    Args:
        collector: The collector of the job's events; ``None`` if the job is not monitored.
        name_of_node: Returns the name of a node.
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
        """The address to which tasks send samples; empty if the job is not monitored."""
        return "" if self._collector is None else self._collector.address

    def record(self, event: Report | Order) -> None:
        """Records a report or an order."""
        if self._collector is None or self._is_over:  # after the last order every node disconnects
            return
        note = self._collector.note
        match event:
            case Start():
                tasks = [str(task) for task in event.plan.all_tasks]
                note("attempt_started", attempt=event.attempt, tasks=tasks)
            case RestartTask():
                note("task_started", task=str(event.task), reason=event.reason)
            case RestartNode():
                for task in event.start.plan.tasks[event.node]:
                    note("task_started", task=str(task), reason=event.reason)
            case TaskEnded():
                task_exit = event.ending
                note(
                    "task_ended",
                    task=str(task_exit.task),
                    exit_code=task_exit.exit_code,
                    failed=task_exit.failed,
                    text=_describe(task_exit),
                )
            case NodeLost():
                name = self._name_of_node(event.node)
                note("note", kind="error", text=f"The launcher of {name} is gone.")
            case Rejoin():
                text = f"{event.reason}; restart {event.attempt} of the job"
                note("note", kind="recovery", text=text)
            case Finish():
                self._is_over = True
                note("job_ended", exit_code=event.exit_code, text=event.message)


def _describe(task_exit: TaskExit) -> str:
    if not task_exit.failed:
        return task_exit.describe()
    return f"{task_exit.describe()}\n{failure_excerpt(task_exit.output)}".rstrip()


@contextlib.contextmanager
def monitor_job(
    options: MonitoringOptions,
    host: str,
    secret_of: Callable[[str], str],
    console: Console,
    name_of_node: Callable[[int], str] = "node {}".format,
) -> Iterator[JobMonitor]:
    """Monitors a job until the end of the block.

    Args:
        options: The kinds of monitoring to enable; may be none.
        host: The host at which tasks reach this machine.
        secret_of: Derives a secret of the job from an id.
        console: Shows the link of the dashboard.
        name_of_node: Returns the name of a node.

    Raises:
        LaunchError: If the event file, the dashboard or OpenTelemetry cannot be used.
    """
    if not options.is_enabled:
        yield JobMonitor()
        return
    events = None if options.events is None else Path(options.events)
    with contextlib.ExitStack() as stack:
        logs = None if options.dashboard is None else TaskLogs()
        secret = secret_of(MONITORING_SECRET_ID)
        collector = stack.enter_context(Collector(host, secret, events, console.own_message, logs))
        collector.note("job_started", name=options.name)
        if options.dashboard is not None and logs is not None:
            address = Address.parse(options.dashboard)
            key = secret_of(_DASHBOARD_SECRET_ID)
            server = DashboardServer(address, collector.view, key, logs.find, options.certificate)
            link = stack.enter_context(server).link
            is_elsewhere = server.is_local and loopback_address(host) is None
            where = f" (on {host})" if is_elsewhere else ""
            console.private_message(f"dashboard: {link}{where}")
            if not server.is_local and options.certificate is None:
                console.message(_NOT_ENCRYPTED)
            _announce(stack, MonitoredJob.of_this_process(options.name, link), console)
        if options.opentelemetry:
            stack.enter_context(OpenTelemetryMetrics(options.name, collector.view))
        yield JobMonitor(collector, name_of_node)


def _announce(stack: contextlib.ExitStack, job: MonitoredJob, console: Console) -> None:
    try:
        stack.enter_context(announce_job(job))
    except (OSError, PermissionDeniedError) as error:
        console.message(f"'stratagem top' finds this job only by its link: {error}")
