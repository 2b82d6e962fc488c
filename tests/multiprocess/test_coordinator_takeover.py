"""A coordinator that is killed, and another that goes on from what the servers hold."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from server_cluster import ServerCluster

import stratagem as sg

CHIEF = Path(__file__).with_name("chief_that_resumes.py")


@pytest.fixture
def cluster(mark):
    cluster = ServerCluster(workers=2, ps=2)
    yield cluster
    cluster.close()


class Chief:
    def __init__(self, cluster, *arguments):
        command = [sys.executable, CHIEF, json.dumps(cluster.cluster), *map(str, arguments)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def hear(self):
        line = self.process.stdout.readline()
        assert line, f"it ended with {self.process.wait(10)}"
        return json.loads(line)

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture
def chief(cluster):
    started = []

    def start(*arguments):
        started.append(Chief(cluster, *arguments))
        return started[-1]

    yield start
    for some in started:
        some.kill()


def test_a_new_coordinator_goes_on_from_what_the_servers_hold(chief):
    first = chief(0.0, 3, "hang")
    assert first.hear()["resumed"] is False
    assert [first.hear()["steps"] for _ in range(4)] == [1, 2, 3, "hangs"]
    first.kill()

    second = chief(0.0, 2)
    begun = second.hear()
    assert (begun["resumed"], begun["steps"]) == (True, 3)
    assert [second.hear()["steps"] for _ in range(2)] == [4, 5]
    end = second.hear()
    assert second.process.wait(20) == 0
    # With the momentum of the steps before: 1, 1.5, 1.75, 1.875, 1.9375 were added.
    np.testing.assert_allclose(end["table"], 8.0625, rtol=1e-6)
    assert end["unnamed"] == [5.0, 20.0, 35.0]
    # Worker 1 still sleeps for the first coordinator, in threads that do not keep others waiting.
    assert end["seconds"] < 5


@pytest.mark.slow
def test_nothing_is_taken_over_if_a_server_is_lost_too(chief, cluster):
    first = chief(0.0, 2, "hang")
    assert [first.hear().get("steps") for _ in range(4)] == [0, 1, 2, "hangs"]
    first.kill()
    cluster.kill("ps", 1)
    cluster.start("ps", 1)
    second = chief(0.0, 0)
    begun = second.hear()
    assert (begun["resumed"], begun["steps"]) == (False, 0)
    assert second.hear()["unnamed"] == [0.0, 10.0, 20.0]


@pytest.mark.slow
def test_the_earlier_coordinator_creates_nothing_any_more(cluster):
    earlier = cluster.strategy()
    with earlier.scope():
        kept = sg.Variable(3.0, name="kept")
    # Another process would have a client of its own.
    earlier.client.close()
    later = cluster.strategy(resume=True)
    assert later.client is not earlier.client
    assert later.resumed
    with later.scope():
        taken = sg.Variable(0.0, name="kept")
        fresh = sg.Variable(1.0, name="fresh")
    assert (float(taken.numpy()), float(fresh.numpy())) == (3.0, 1.0)
    later.client.close()
    with (
        cluster.strategy(resume=True).scope(),
        pytest.raises(ValueError, match=r"'fresh' is created as float32\[2\].*float32\[\]"),
    ):
        sg.Variable(np.zeros(2, np.float32), name="fresh")
    with earlier.scope(), pytest.raises(sg.errors.UnavailableError, match="closed"):
        sg.Variable(0.0)
    del kept
