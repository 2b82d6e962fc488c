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
    crashed = time.time()
    three[silent].crash()
    for index in {0, 1, 2} - {silent}:
        left = crashed + NOTICED_SECONDS + SLACK_SECONDS - time.time()
        job.commands[index].wait_for("The rest of the workers go on", left)
    gone_on = poll(lambda: step_with(folder, 2, crashed), FORM_SECONDS)["time"]
    three[silent].boot()
    job.commands[silent] = job.start(three[silent], silent)
    poll(lambda: step_with(folder, 3, gone_on), 90)
    (folder / "enough").touch()
    job.finish(60)


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
