"""A coordinator, a worker and a parameter server on three hosts, one of which is cut off."""

import json
import re
import sys
import time
from pathlib import Path

import pytest
from host_jobs import PORT, SECRET

PROGRAM = Path(__file__).with_name("scheduled.py")
SLACK_SECONDS = 12.0

pytestmark = pytest.mark.slow


def start(hosts, num_functions, worker_timeout):
    """Starts a chief, a worker and a parameter server, each on its host; returns the chief."""
    jobs = ("chief", "worker", "ps")
    cluster = {job: [f"{host.name}:{PORT}"] for job, host in zip(jobs, hosts, strict=True)}
    started = []
    for job, host in zip(jobs, hosts, strict=True):
        config = {"cluster": cluster, "task": {"type": job, "index": 0}}
        variables = {"TF_CONFIG": json.dumps(config), "STRATAGEM_CLUSTER_SECRET": SECRET}
        command = [sys.executable, PROGRAM, num_functions, worker_timeout]
        started.append(host.start(command, variables))
    started[0].wait_for("count 5", 120)
    return started[0]


@pytest.mark.parametrize("cut_off", [0, 1, 2], ids=["chief", "worker", "ps"])
def test_a_host_that_is_cut_off_for_five_seconds(hosts, cut_off):
    three = hosts(3)
    chief = start(three, 120, 10.0)
    three[cut_off].cut()
    time.sleep(5.0)  # what is tested
    three[cut_off].heal()
    assert chief.wait(120) == 0, chief.output()
    assert "count 120" in chief.output()


@pytest.mark.parametrize("worker_timeout", [4.0, 10.0])
def test_a_server_that_is_cut_off_for_ever_is_lost_after_the_timeout(hosts, worker_timeout):
    three = hosts(3)
    chief = start(three, 10000, worker_timeout)
    three[2].cut()
    assert chief.wait(worker_timeout + 5.0 + SLACK_SECONDS) == 4, chief.output()
    found = re.search(r"lost after ([\d.]+) s: (.*)", chief.output())
    assert worker_timeout - 2.0 < float(found[1]) < worker_timeout + SLACK_SECONDS
    assert "/job:ps/task:0" in found[2]


def test_a_chief_that_is_cut_off_for_ever_gives_up_after_the_timeout(hosts):
    three = hosts(3)
    chief = start(three, 10000, 10.0)
    three[0].cut()
    assert chief.wait(10.0 + 5.0 + SLACK_SECONDS) == 4, chief.output()
    found = re.search(r"lost after ([\d.]+) s: (.*)", chief.output())
    assert 8.0 < float(found[1]) < 10.0 + SLACK_SECONDS
    assert "Lost parameter server /job:ps/task:0" in found[2]
