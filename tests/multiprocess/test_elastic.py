"""Training that goes on when workers are killed or stopped, and when others take their places."""

import functools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from processes import poll

pytestmark = pytest.mark.timeout(240)

WORKER = Path(__file__).with_name("elastic_worker.py")
STEPS_PER_EPOCH = 4


class Job:
    """An elastic job under ``stratagem run``, and what its workers note."""

    def __init__(self, start, folder, *flags, epochs, pause=0.05, ways=()):
        self.folder = folder
        self.launcher = start("run", *flags, WORKER, folder, epochs, pause, *ways)

    def events(self, *kinds):
        found = []
        for file in self.folder.glob("*.jsonl"):
            for line in file.read_text().splitlines(keepends=True):
                if line.endswith("\n"):
                    found.append({**json.loads(line), "pid": int(file.stem.split("-")[2])})
        found.sort(key=lambda event: event["time"])
        return [event for event in found if event["event"] in kinds]

    def wait_for_step(self, number):
        poll(lambda: any(e["step"] >= number for e in self.events("step")), 90)

    def send(self, number, *tasks):
        """Sends a signal; returns when."""
        pids = [self.latest_pid(task) for task in tasks]
        for pid in pids:
            os.kill(pid, number)
        return time.time()

    def latest_pid(self, task):
        return [e["pid"] for e in self.events("start") if e["task"] == task][-1]

    def steps_with(self, workers, since):
        return [e for e in self.events("step") if e["time"] > since and e["workers"] == workers]

    def wait_for_workers(self, number, since, seconds=60):
        """Returns how long after a moment so many workers made a step together."""
        return poll(lambda: self.steps_with(number, since), seconds)[0]["time"] - since

    def check(self, reference):
        """Checks that the run has the numbers of an undisturbed one."""
        job = self.launcher.finish(120)
        assert job.returncode == 0, job.stdout + job.stderr
        losses = {}
        for event in self.events("step"):
            losses.setdefault(event["step"], []).append(event["loss"])
        assert sorted(losses) == list(range(len(reference["losses"])))
        for step, seen in losses.items():
            np.testing.assert_allclose(seen, reference["losses"][step], rtol=1e-4, atol=1e-5)
        for event in self.events("epoch"):
            assert set(event["counted"]) == {1}
        ends = self.events("end")
        assert ends
        for end in ends:
            np.testing.assert_allclose(end["w"], reference["w"], rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """Returns the numbers of one worker that nobody disturbs, for some number of epochs."""

    @functools.cache
    def run(epochs):
        folder = tmp_path_factory.mktemp("reference")
        environment = {k: v for k, v in os.environ.items() if k != "TF_CONFIG"}
        environment["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
        command = [sys.executable, WORKER, folder, str(epochs), "0"]
        subprocess.run(command, env=environment, check=True, timeout=100)
        [file] = folder.glob("*.jsonl")
        events = [json.loads(line) for line in file.read_text().splitlines()]
        losses = [event["loss"] for event in events if event["event"] == "step"]
        assert len(losses) == epochs * STEPS_PER_EPOCH
        return {"losses": losses, "w": events[-1]["w"]}

    return run


def test_a_killed_worker_is_replaced_and_every_number_is_as_if_nothing_happened(
    start, tmp_path, reference
):
    job = Job(start, tmp_path, "--workers", "2:3", epochs=30)
    job.wait_for_step(5)
    killed = job.send(signal.SIGKILL, 1)
    went_on = job.wait_for_workers(2, killed)
    came_back = job.wait_for_workers(3, killed + went_on)
    assert came_back > 0
    job.check(reference(30))
    assert {e["task"] for e in job.events("end")} == {0, 1, 2}


def test_the_others_go_on_without_the_leader(start, tmp_path, reference):
    job = Job(start, tmp_path, "--workers", "1:3", "--max-worker-restarts", 0, epochs=6)
    job.wait_for_step(5)
    killed = job.send(signal.SIGKILL, 0)
    job.wait_for_workers(2, killed)
    job.check(reference(6))
    assert {e["task"] for e in job.events("end")} == {1, 2}


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "left"), [("2:3", 2), ("1:2", 1)])
def test_what_a_killed_worker_had_a_part_of_is_not_lost(start, tmp_path, reference, workers, left):
    job = Job(start, tmp_path, "--workers", workers, epochs=30, ways=["parts"])
    job.wait_for_step(5)
    killed = job.send(signal.SIGKILL, 1)
    went_on = job.wait_for_workers(left, killed)
    job.wait_for_workers(left + 1, killed + went_on)
    job.check(reference(30))


@pytest.mark.slow
@pytest.mark.parametrize("victims", [(1,), (0,), (1, 3), (0, 4)])
def test_five_workers_lose_some(start, tmp_path, reference, victims):
    job = Job(start, tmp_path, "--workers", "1:5", "--max-worker-restarts", 0, epochs=6)
    job.wait_for_step(5)
    killed = job.send(signal.SIGKILL, *victims)
    job.wait_for_workers(5 - len(victims), killed)
    job.check(reference(6))
    assert {e["task"] for e in job.events("end")} == set(range(5)) - set(victims)


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.1, 0.4, 0.7, 1.0, 1.3])
@pytest.mark.parametrize("second", [0, 2])
def test_a_worker_is_killed_while_the_others_form_anew(start, tmp_path, reference, second, delay):
    job = Job(start, tmp_path, "--workers", "1:4", "--max-worker-restarts", 0, epochs=6)
    job.wait_for_step(5)
    job.send(signal.SIGKILL, 1)
    time.sleep(delay)  # the moment is what is tried out
    killed = job.send(signal.SIGKILL, second)
    job.wait_for_workers(2, killed)
    job.check(reference(6))


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.3, 1.0])
def test_a_worker_that_has_come_back_is_killed_again(start, tmp_path, reference, delay):
    job = Job(start, tmp_path, "--workers", "1:3", epochs=40)
    job.wait_for_step(5)
    job.send(signal.SIGKILL, 2)
    poll(lambda: len([e for e in job.events("start") if e["task"] == 2]) == 2, 60)
    time.sleep(delay)  # while it is let in, or has just been
    killed = job.send(signal.SIGKILL, 2)
    job.wait_for_workers(3, killed)
    job.check(reference(40))


@pytest.mark.slow
def test_all_but_one_are_killed_and_come_back(start, tmp_path, reference):
    job = Job(start, tmp_path, "--workers", "1:3", epochs=150)
    job.wait_for_step(5)
    killed = job.send(signal.SIGKILL, 0, 1)
    job.wait_for_workers(3, killed, 90)
    job.check(reference(150))


@pytest.mark.slow
def test_a_stopped_worker_is_left_behind_and_starts_again_when_it_wakes_up(
    start, tmp_path, reference
):
    job = Job(start, tmp_path, "--workers", "2:3", epochs=120)
    job.wait_for_step(5)
    pid = job.latest_pid(1)
    stopped = job.send(signal.SIGSTOP, 1)
    assert job.wait_for_workers(2, stopped) > 5
    os.kill(pid, signal.SIGCONT)
    job.wait_for_workers(3, time.time(), 90)
    job.check(reference(120))
    assert "gone on without it" in job.launcher.stdout + job.launcher.stderr
    assert pid not in {e["pid"] for e in job.events("end")}


@pytest.mark.slow
def test_too_few_workers_wait_for_others_and_name_those_that_are_missing(start, tmp_path):
    job = Job(start, tmp_path, "--workers", "3:3", "--max-worker-restarts", 0, epochs=100)
    job.wait_for_step(5)
    job.send(signal.SIGKILL, 1)
    ended = job.launcher.finish(200)
    assert ended.returncode != 0
    assert "worker 1" in ended.stdout + ended.stderr


@pytest.mark.slow
def test_an_error_of_the_program_ends_the_job(start, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import stratagem as sg\n"
        "strategy = sg.distribute.MultiWorkerMirroredStrategy()\n"
        "@sg.train.elastic(strategy)\n"
        "def train(loop):\n"
        "    for step in loop.range(3):\n"
        "        if step == 1: raise KeyError('a mistake')\n"
        "train()\n"
    )
    job = start("run", "--workers", "1:2", program).finish(100)
    assert job.returncode == 1
    assert "a mistake" in job.stderr
