"""Starts reporting to the job's collector, if this process is a task of a monitored job."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from stratagem._src.cluster.environment_variables import is_set
from stratagem._src.process.fork import at_exit

if TYPE_CHECKING:
    from stratagem._src.telemetry.monitoring.reporter import Reporter

__all__ = ["ADDRESS_VARIABLE", "report_if_monitored"]

ADDRESS_VARIABLE = "STRATAGEM_COLLECTOR"

_starting = threading.Lock()
_reporter: Reporter | None = None


def report_if_monitored() -> None:
    """Starts the reporter of this process, if the job has a collector and the reporter does not run yet.

    Strategies and servers call it, because every training program creates one of these first.

    Raises:
        EnvironmentVariableError: If the launcher's variables for the collector are invalid.
    """
    global _reporter
    if _reporter is not None or not is_set(ADDRESS_VARIABLE):
        return
    from stratagem._src.telemetry.monitoring.collector_address import CollectorAddress
    from stratagem._src.telemetry.monitoring.reporter import Reporter

    with _starting:
        if _reporter is None:
            _reporter = Reporter(CollectorAddress.from_environment())
            at_exit(_reporter.close)
