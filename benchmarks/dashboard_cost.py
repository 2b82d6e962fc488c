"""Overhead of monitoring on a step.

The same compiled step, which reports its loss, is made by a process that sends a sample every second to a
collector with a dashboard, and by two that nobody observes: what these differ by is chance. The process's
time for samples in which nothing is trained is shown too.
"""

from __future__ import annotations

import argparse
import time

from observed_steps import Way, print_table

from stratagem._src.cluster.address import Address
from stratagem._src.telemetry.monitoring.collector import Collector
from stratagem._src.telemetry.monitoring.collector_address import (
    CollectorAddress,
    collector_variables,
)
from stratagem._src.telemetry.monitoring.dashboard.dashboard_server import DashboardServer
from stratagem._src.telemetry.monitoring.reporter import Reporter
from stratagem._src.transport import Credentials

SECRET = "a secret for this benchmark only"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--turns", type=int, default=50)
    flags = parser.parse_args()
    with (
        Collector("127.0.0.1", SECRET) as collector,
        DashboardServer(Address("127.0.0.1", 0), collector.view, SECRET),
    ):
        told = collector_variables(collector.address, SECRET, "worker 0")
        print_table(
            lambda: {"alone": Way(), "again": Way(), "monitored": Way(environment=told)},
            starts=flags.starts,
            turns=flags.turns,
        )
        address = CollectorAddress(collector.address, Credentials(secret=SECRET), "worker 0")
        reporter = Reporter(address, seconds=0.1)
        began, used = time.perf_counter(), time.process_time()
        time.sleep(3.0)
        num_samples = (time.perf_counter() - began) / 0.1
        used = (time.process_time() - used) / num_samples
        reporter.close()
        print(f"a sample, with its collector: {used * 1e3:.2f} ms of CPU time, once a second")


if __name__ == "__main__":
    main()
