"""Launchers on several hosts: one that falls silent, and what the others do about it."""

import signal
import sys
import time

import pytest
from host_jobs import SECRET, STEPS

from stratagem._src.launcher.rendezvous import HEARTBEAT_TIMEOUT

pytestmark = pytest.mark.slow

SLACK_SECONDS = 15.0  # for the tasks to end, on a machine that is busy with several hosts


@pytest.fixture
def launchers(hosts):
    """Starts a job by ``stratagem run`` on two hosts; returns hosts and launchers."""
    both = hosts(2)
    started = []
    for rank, host in enumerate(both):
        flags = ["--nnodes", 2, "--node-rank", rank, "--rdzv-endpoint", "host1:29400"]
        command = [sys.executable, "-m", "stratagem", "run", *flags, STEPS, 10000, 0.1]
        started.append(host.start(command, {"STRATAGEM_CLUSTER_SECRET": SECRET}))
    for each in started:
        each.wait_for("step 3 sum 3.0", 120)
    return both, started


@pytest.mark.parametrize("silent", [0, 1])
def test_a_host_that_loses_power_ends_the_job(launchers, silent):
    hosts, started = launchers
    crashed = time.monotonic()
    hosts[silent].crash()
    survivor = started[1 - silent]
    assert survivor.wait(HEARTBEAT_TIMEOUT + SLACK_SECONDS) != 0
    assert time.monotonic() - crashed > 5.0
    said = survivor.output()
    assert f"worker {silent} (" in said or f"node {silent} " in said
    assert "has sent no heartbeat for" in said


def test_a_launcher_that_is_stopped_ends_the_job(launchers):
    hosts, started = launchers
    started[1].process.send_signal(signal.SIGSTOP)  # nsenter's: not yet the launcher's
    for pid in hosts[1].processes():
        if "node-rank" in hosts[1].command_of(pid):
            hosts[1].signal(pid, signal.SIGSTOP)
    assert started[0].wait(HEARTBEAT_TIMEOUT + SLACK_SECONDS) == 1
    assert "the launcher of node 1 is gone" in started[0].output()
    for pid in hosts[1].processes():
        hosts[1].signal(pid, signal.SIGCONT)
    started[1].process.send_signal(signal.SIGCONT)
    assert started[1].wait(SLACK_SECONDS) == 1
    assert "node 0 at host1:29400 is gone" in started[1].output()
