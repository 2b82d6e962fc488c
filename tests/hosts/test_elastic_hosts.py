"""Elastic training goes on when a host falls silent, and takes a host in that has booted again."""

import json
import time
from pathlib import Path

import pytest
from host_jobs import Job
from topology import poll

WORKER = Path(__file__).parents[1] / "multiprocess" / "elastic_worker.py"
NOTICED_SECONDS = 8.0
SLACK_SECONDS = 5.0
FORM_SECONDS = 60.0  # to start JAX and compile again, on a machine that is busy with several hosts


def boot_id(host):
    done = host.start(["cat", "/proc/sys/kernel/random/boot_id"])
    assert done.wait(10) == 0
    return done.output().strip()


def steps(folder):
    """Returns the steps that workers have noted, in the order of their times."""
    lines = [line for file in folder.glob("*.jsonl") for line in file.read_text().splitlines()]
    events = [json.loads(line) for line in lines]
    return sorted((e for e in events if e["event"] == "step"), key=lambda event: event["time"])


def step_with(folder, workers, since):
    """Returns the first step that so many workers have made together since then."""
    found = [e for e in steps(folder) if e["workers"] == workers and e["time"] > since]
    return found[0] if found else None


@pytest.mark.slow
@pytest.mark.parametrize("silent", [pytest.param(0, id="leader"), pytest.param(1, id="worker")])
def test_the_others_go_on_without_a_host_that_loses_power(hosts, topology, silent):
    three = hosts(3)
    folder = topology.shared[0]
    job = Job(three, [WORKER, folder, 1_000_000, 0.05], env={"STRATAGEM_MIN_WORKERS": "2"})
    poll(lambda: step_with(folder, 3, 0.0), 120)
    before, crashed = boot_id(three[silent]), time.time()
    three[silent].crash()
    for index in {0, 1, 2} - {silent}:
        left = crashed + NOTICED_SECONDS + SLACK_SECONDS - time.time()
        job.commands[index].wait_for("The remaining workers continue", left)
    gone_on = poll(lambda: step_with(folder, 2, crashed), FORM_SECONDS)["time"]
    three[silent].boot()
    assert boot_id(three[silent]) != before
    job.commands[silent] = job.start(three[silent], silent)
    poll(lambda: step_with(folder, 3, gone_on), 90)
    (folder / "enough").touch()
    job.finish(60)


@pytest.mark.slow
@pytest.mark.parametrize("crashed", [pytest.param(0, id="leader"), pytest.param(2, id="worker")])
def test_a_host_that_crashes_and_boots_at_once(hosts, topology, crashed):
    # It is back before the others have missed its heartbeats for their timeout, and answers that
    # nobody knows their connections: they need not wait for the rest of it.
    three = hosts(3)
    folder = topology.shared[0]
    job = Job(three, [WORKER, folder, 1_000_000, 0.05], env={"STRATAGEM_MIN_WORKERS": "2"})
    poll(lambda: step_with(folder, 3, 0.0), 120)
    before, crash = boot_id(three[crashed]), time.time()
    three[crashed].crash()
    three[crashed].boot()
    assert boot_id(three[crashed]) != before
    job.commands[crashed] = job.start(three[crashed], crashed)
    for index in {0, 1, 2} - {crashed}:
        left = crash + NOTICED_SECONDS + SLACK_SECONDS - time.time()
        job.commands[index].wait_for("The remaining workers continue", left)
    # With the two others first, or at once with all three, if it was up by then.
    poll(lambda: step_with(folder, 3, crash + 1.0), 2 * FORM_SECONDS)
    (folder / "enough").touch()
    job.finish(60)
    assert step_with(folder, 1, crash) is None


@pytest.mark.slow
@pytest.mark.parametrize("silent", [0, 2])
def test_a_partition_that_ends_soon_changes_nothing(hosts, topology, silent):
    three = hosts(3)
    folder = topology.shared[0]
    job = Job(three, [WORKER, folder, 1_000_000, 0.05], env={"STRATAGEM_MIN_WORKERS": "2"})
    poll(lambda: step_with(folder, 3, 0.0), 120)
    three[silent].cut()
    time.sleep(5)  # what is tested
    healed = time.time()
    three[silent].heal()
    poll(lambda: step_with(folder, 3, healed), 30)
    (folder / "enough").touch()
    job.finish(60)
    assert step_with(folder, 2, 0.0) is None


@pytest.mark.slow
@pytest.mark.parametrize("silent", [0, 2])
@pytest.mark.parametrize("direction", ["inbound", "outbound"])
def test_the_others_go_on_when_a_host_is_cut_off_in_one_direction(
    hosts, topology, silent, direction
):
    three = hosts(3)
    folder = topology.shared[0]
    job = Job(three, [WORKER, folder, 1_000_000, 0.05], env={"STRATAGEM_MIN_WORKERS": "2"})
    poll(lambda: step_with(folder, 3, 0.0), 120)
    cut = time.time()
    three[silent].cut(inbound=direction == "inbound", outbound=direction == "outbound")
    for index in {0, 1, 2} - {silent}:
        left = cut + NOTICED_SECONDS + SLACK_SECONDS - time.time()
        job.commands[index].wait_for("The remaining workers continue", left)
    poll(lambda: step_with(folder, 2, cut), FORM_SECONDS)
    three[silent].heal()
    assert job.commands[silent].wait(60) == 75, job.commands[silent].output()
    del job.commands[silent]
    (folder / "enough").touch()
    job.finish(60)
    assert step_with(folder, 1, cut) is None


@pytest.mark.slow
@pytest.mark.parametrize("silent", [0, 2])
def test_a_host_that_was_cut_off_finds_that_the_others_went_on(hosts, topology, silent):
    three = hosts(3)
    folder = topology.shared[0]
    job = Job(three, [WORKER, folder, 1_000_000, 0.05], env={"STRATAGEM_MIN_WORKERS": "2"})
    poll(lambda: step_with(folder, 3, 0.0), 120)
    cut = time.time()
    three[silent].cut()
    gone_on = poll(lambda: step_with(folder, 2, cut), FORM_SECONDS)["time"]
    assert step_with(folder, 1, cut) is None  # it does not train on alone
    three[silent].heal()
    assert job.commands[silent].wait(60) == 75, job.commands[silent].output()
    job.commands[silent] = job.start(three[silent], silent)
    poll(lambda: step_with(folder, 3, gone_on), 90)
    (folder / "enough").touch()
    job.finish(60)
    assert step_with(folder, 1, cut) is None
