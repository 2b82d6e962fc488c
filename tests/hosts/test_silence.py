"""Hosts that fall silent: who notices, after how long, and whom it names."""

import re
import time

import pytest
from host_jobs import STEPS, Job

NOTICED_SECONDS = 8.0  # the heartbeat timeout that docs/networking.md promises
SLACK_SECONDS = 5.0  # for a machine that is busy with several hosts
ENDED_SECONDS = 5.0


def loss(command):
    """Returns after how many seconds a worker gave up, and its error."""
    found = re.search(r"lost after ([\d.]+) s: (.*)", command.output())
    assert found, command.output()
    return float(found[1]), found[2]


def gave_up_in_time(command, since, culprit):
    """Waits until a worker has given up on another and ended, as fast as it is promised."""
    deadline = since + NOTICED_SECONDS + SLACK_SECONDS + ENDED_SECONDS
    assert command.wait(deadline - time.monotonic()) == 4, command.output()
    seconds, error = loss(command)
    assert seconds < NOTICED_SECONDS + SLACK_SECONDS
    assert f"but {culprit}" in error or f"gave up: {culprit}" in error, error
    assert "has sent no heartbeat" in error
    assert "alive" not in error


@pytest.mark.parametrize(
    "silent", [pytest.param(0, id="leader"), pytest.param(2, id="worker", marks=pytest.mark.slow)]
)
def test_a_host_that_loses_power(hosts, silent):
    three = hosts(3)
    job = Job(three, [STEPS, 1000, 0.1])
    job.wait_for("step 3 ")
    crashed = time.monotonic()
    three[silent].crash()
    for index in {0, 1, 2} - {silent}:
        gave_up_in_time(job.commands[index], crashed, f"worker {silent} (host{silent + 1}:4711)")


@pytest.mark.slow
@pytest.mark.parametrize("silent", [0, 1])
@pytest.mark.parametrize("direction", ["inbound", "outbound", "both"])
def test_a_partition_for_ever(hosts, silent, direction):
    two = hosts(2)
    job = Job(two, [STEPS, 1000, 0.1])
    job.wait_for("step 3 ")
    two[silent].cut(inbound=direction != "outbound", outbound=direction != "inbound")
    deadline = time.monotonic() + NOTICED_SECONDS + SLACK_SECONDS + ENDED_SECONDS
    for command in job.commands:
        assert command.wait(deadline - time.monotonic()) == 4, command.output()
        seconds, error = loss(command)
        assert seconds < NOTICED_SECONDS + SLACK_SECONDS
        assert "alive" not in error


@pytest.mark.slow
@pytest.mark.parametrize("silent", [0, 1])
@pytest.mark.parametrize("seconds", [2, 5])
def test_a_partition_that_ends_soon_is_survived(hosts, silent, seconds):
    two = hosts(2)
    job = Job(two, [STEPS, 100, 0.1])
    job.wait_for("step 3 ")
    two[silent].cut()
    time.sleep(seconds)  # what is tested
    two[silent].heal()
    job.finish(60)
    assert all("step 99 sum 3.0" in command.output() for command in job.commands)


@pytest.mark.slow
@pytest.mark.parametrize("silent", [0, 1])
def test_a_partition_that_ends_after_30_seconds_was_one_for_ever(hosts, silent):
    two = hosts(2)
    job = Job(two, [STEPS, 1000, 0.1])
    job.wait_for("step 3 ")
    cut = time.monotonic()
    two[silent].cut()
    deadline = cut + NOTICED_SECONDS + SLACK_SECONDS + ENDED_SECONDS
    for command in job.commands:
        assert command.wait(deadline - time.monotonic()) == 4, command.output()
    time.sleep(max(0.0, cut + 30 - time.monotonic()))  # what is tested
    two[silent].heal()
    # Nothing of the first job is in the way of a second one, at the same addresses.
    again = Job(two, [STEPS, 5, 0.1])
    again.finish(60)
    assert all("step 4 sum 3.0" in command.output() for command in again.commands)


@pytest.mark.slow
def test_a_job_can_be_started_again_at_once_after_a_host_lost_power(hosts):
    three = hosts(3)
    job = Job(three, [STEPS, 1000, 0.1])
    job.wait_for("step 3 ")
    crashed = time.monotonic()
    three[2].crash()
    for index in (0, 1):
        gave_up_in_time(job.commands[index], crashed, "worker 2 (host3:4711)")
    three[2].boot()
    # The membership server of the first job is not in the way, though it never heard that worker 2 ended.
    again = Job(three, [STEPS, 5, 0.1])
    again.finish(60)
    assert all("step 4 sum 6.0" in command.output() for command in again.commands)


@pytest.mark.slow
def test_a_leader_that_loses_power_while_others_start(hosts):
    three = hosts(3)
    leader, worker = Job(three, [STEPS, 3, 0]).commands[:2]
    three[2].kill()  # so that the others wait for it
    leader.wait_for("waits for worker 2", 60)
    worker.wait_for("waits for worker 2", 60)
    three[0].crash()
    assert worker.wait(NOTICED_SECONDS + SLACK_SECONDS + ENDED_SECONDS) == 3
    assert "worker 0 (host1:4711) has sent no heartbeat" in worker.output()
