"""Whether this process is a task of a job that is observed; it reports then."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from stratagem._src.cluster.environment_variables import is_set
from stratagem._src.process.fork import at_exit

if TYPE_CHECKING:
    from stratagem._src.telemetry.monitoring.reporter import Reporter

__all__ = ["ADDRESS_VARIABLE", "report_if_observed"]

ADDRESS_VARIABLE = "STRATAGEM_COLLECTOR"

_beginning = threading.Lock()
_reporter: Reporter | None = None


def report_if_observed() -> None:
    """Begins to report to the job's collector, if there is one and this process does not yet.

    Called by what every program that trains makes first: a strategy, or a server.

    Raises:
        EnvironmentVariableError: If what the launcher said of the collector cannot be used.
    """
    global _reporter
    if _reporter is not None or not is_set(ADDRESS_VARIABLE):
        return
    from stratagem._src.telemetry.monitoring.collector_address import CollectorAddress
    from stratagem._src.telemetry.monitoring.reporter import Reporter

    with _beginning:
        if _reporter is None:
            _reporter = Reporter(CollectorAddress.from_environment())
            at_exit(_reporter.close)
