"""Training that goes on when workers are killed or stopped, and when others take their places."""

import functools
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from processes import poll

import stratagem as sg
from stratagem._src.cluster.reserved_ports import ReservedPorts

pytestmark = pytest.mark.timeout(600)

WORKER = Path(__file__).with_name("elastic_worker.py")
KERAS_WORKER = WORKER.with_name("elastic_keras_worker.py")
MOST_EPOCHS, PAUSE = 100_000, 0.05
SECONDS = 200
"""To wait for what takes a few on a machine that does nothing else."""


class Job:
    """An elastic job under ``stratagem run``, and what its workers note."""

    def __init__(self, start, folder, *flags, worker=WORKER, more=()):
        self.folder = folder
        self.worker = worker
        self.launcher = start("run", *flags, worker, folder, MOST_EPOCHS, PAUSE, *more)

    def events(self, *kinds):
        found = []
        for file in self.folder.glob("*.jsonl"):
            for line in file.read_text().splitlines(keepends=True):
                if line.endswith("\n"):
                    found.append({**json.loads(line), "pid": int(file.stem.split("-")[2])})
        found.sort(key=lambda event: event["time"])
        return [event for event in found if event["event"] in kinds]

    def wait_until(self, condition):
        """Waits until a condition is true and returns its value; fails if the job ends before."""

        def holds():
            if self.launcher.process.poll() is not None:
                ended = self.launcher.finish()
                pytest.fail(f"the job has ended: {ended.stdout}{ended.stderr}")
            return condition()

        return poll(holds, SECONDS)

    def wait_for_step(self, number):
        self.wait_until(lambda: any(e["step"] >= number for e in self.events("step")))

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

    def wait_for_workers(self, number, since):
        """Waits until so many workers have made a step together; returns when."""
        return self.wait_until(lambda: self.steps_with(number, since))[0]["time"]

    def end(self):
        """Has the job come to its end; returns the tasks whose workers did."""
        (self.folder / "enough").touch()
        self.launcher.finish(SECONDS)
        assert self.launcher.returncode == 0, self.launcher.stdout + self.launcher.stderr
        return {event["task"] for event in self.events("end")}

    def check(self, reference):
        """Checks that the run has the numbers of an undisturbed one."""
        losses, weights = reference(1 + self.events("epoch")[-1]["epoch"], self.worker)
        found = {}
        for event in self.events("step"):
            found.setdefault(event["step"], []).append(event["loss"])
        assert sorted(found) == list(range(len(losses)))
        for step, seen in found.items():
            np.testing.assert_allclose(seen, losses[step], rtol=1e-4, atol=1e-5)
        for event in self.events("epoch"):
            assert set(event["counted"]) == {1}
            np.testing.assert_allclose(event["w"], weights[event["epoch"]], rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """Returns the losses and weights of one worker that nobody disturbs, for some number of epochs."""

    @functools.cache
    def run(hundreds, worker):
        folder = tmp_path_factory.mktemp("reference")
        environment = {k: v for k, v in os.environ.items() if k != "TF_CONFIG"}
        environment["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
        command = [sys.executable, worker, folder, str(100 * hundreds), "0"]
        subprocess.run(command, env=environment, check=True, timeout=SECONDS)
        [file] = folder.glob("*.jsonl")
        events = [json.loads(line) for line in file.read_text().splitlines()]
        losses = [event["loss"] for event in events if event["event"] == "step"]
        weights = [event["w"] for event in events if event["event"] == "epoch"]
        assert len(weights) == 100 * hundreds
        return losses, weights

    def first(epochs, worker):
        losses, weights = run(-(-epochs // 100), worker)
        return losses[: epochs * len(losses) // len(weights)], weights[:epochs]

    return first


def test_a_killed_worker_is_replaced_and_every_number_is_as_if_nothing_happened(
    start, tmp_path, reference, monkeypatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    events = tmp_path / "monitoring" / "events.jsonl"
    job = Job(start, tmp_path, "--workers", "2:3", "--events", events)
    job.wait_for_step(5)
    went_on = job.wait_for_workers(2, job.send(signal.SIGKILL, 1))
    joined = job.wait_for_workers(3, went_on)
    assert job.end() == {0, 1, 2}
    job.check(reference)
    for survivor in (0, 2):
        # Programs for three workers were compiled before one was lost, and not again, but for at most one.
        two = [e for e in job.steps_with(2, went_on - 0.001) if e["task"] == survivor]
        three = [e for e in job.steps_with(3, joined - 0.001) if e["task"] == survivor]
        assert two[0]["compiled"]
        assert len(three[0]["compiled"]) <= len(two[-1]["compiled"]) + 1
    # Nor by the worker that was started again. It got the weights, for which there was no program yet.
    [first, *_] = [e for e in job.steps_with(3, joined - 0.001) if e["task"] == 1]
    assert first["compiled"].count("jit_program") <= 1
    check_recovery_notes(events)


def check_recovery_notes(path):
    """Checks that the job said what it recovered after the loss of worker 1, and how long that took."""
    events = [json.loads(line) for line in path.read_text().splitlines()]
    notes = [e["text"] for e in events if e["event"] == "note" and e["kind"] == "recovery"]
    seconds = r"\d+\.\d s"
    resumed = (
        rf"resumed at step \d+ with \d+ variables \([\d,]+ bytes\); re-formed after {seconds}, "
        rf"trained again after {seconds}"
    )
    for expected in (
        rf"lost worker 1: 2 workers {resumed}",
        rf"admitted worker 1: 3 workers {resumed}",
        rf"worker 1 trains again, {seconds} after it failed",
    ):
        assert [text for text in notes if re.fullmatch(expected, text)], notes


def test_the_others_go_on_without_the_leader(start, tmp_path, reference):
    job = Job(start, tmp_path, "--workers", "1:3", "--max-worker-restarts", 0)
    job.wait_for_step(5)
    job.wait_for_workers(2, job.send(signal.SIGKILL, 0))
    assert job.end() == {1, 2}
    job.check(reference)


FIT = """
import numpy as np
import stratagem as sg

strategy = sg.distribute.MultiWorkerMirroredStrategy()
x = np.ones((8, 2), np.float32)
with strategy.scope():
    model = sg.keras.Sequential([sg.keras.Input((2,)), sg.keras.layers.Dense(1)])
    model.compile("sgd", "mse")

@sg.train.elastic(strategy)
def train(loop):
    model.fit(x, x[:, :1], callbacks=[sg.train.ElasticFit(loop)], verbose=0)
    for epoch in loop.range(1):
        model.fit(x, x[:, :1], verbose=0)
    print("until here each knows its place", flush=True)
    for _ in range(2):
        model.fit(x, x[:, :1], verbose=0)

train()
"""


def test_a_fit_that_would_repeat_its_epochs_says_so_once(start, tmp_path):
    program = tmp_path / "fit.py"
    program.write_text(FIT)
    job = start("run", "--workers", "1:2", program).finish(SECONDS)
    assert job.returncode == 0, job.stderr
    assert "each knows its place" in job.stdout
    assert job.stderr.count("fit() in an elastic job repeats all of its epochs") == 1


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 2])
def test_keras_goes_on_with_the_epoch_that_was_at_work(start, tmp_path, reference, victim):
    job = Job(start, tmp_path, "--workers", "1:3", worker=KERAS_WORKER)
    job.wait_for_step(3)
    went_on = job.wait_for_workers(2, job.send(signal.SIGKILL, victim))
    job.wait_for_workers(3, went_on)
    assert job.end() == {0, 1, 2}
    job.check(reference)


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "left"), [("2:3", 2), ("1:2", 1)])
def test_what_a_killed_worker_had_a_part_of_is_not_lost(start, tmp_path, reference, workers, left):
    job = Job(start, tmp_path, "--workers", workers, more=["parts"])
    job.wait_for_step(5)
    went_on = job.wait_for_workers(left, job.send(signal.SIGKILL, 1))
    job.wait_for_workers(left + 1, went_on)
    assert job.end() == set(range(left + 1))
    job.check(reference)


@pytest.mark.slow
def test_workers_whose_devices_shard_variables_by_rules(start, tmp_path, reference):
    flags = ("--workers", "2:3", "--devices-per-worker", "3")
    job = Job(start, tmp_path, *flags, more=["rules"])
    job.wait_for_step(5)
    went_on = job.wait_for_workers(2, job.send(signal.SIGKILL, 1))
    job.wait_for_workers(3, went_on)
    assert job.end() == {0, 1, 2}
    job.check(reference)


@pytest.mark.slow
@pytest.mark.parametrize("again", ["1:3", "2"])
def test_a_job_that_is_killed_wholly_goes_on_from_its_checkpoint(start, tmp_path, reference, again):
    job = Job(start, tmp_path, "--workers", 2, more=["resumes"])
    # In the middle of an epoch, of which there are four steps.
    job.wait_for_step(6)
    pids = [job.latest_pid(task) for task in range(2)]
    job.launcher.process.kill()
    poll(lambda: not any(map(psutil.pid_exists, pids)), SECONDS)
    killed = time.time()
    before = max(event["step"] for event in job.events("step"))
    job = Job(start, tmp_path, "--workers", again, more=["resumes"])
    number = int(again[-1])
    went_on = job.wait_for_workers(number, killed)
    first = job.steps_with(number, killed)[0]["step"]
    assert before - 6 < first <= before + 1
    if again == "1:3":  # a loss after that does not go back to the checkpoint
        went_on = job.wait_for_workers(2, job.send(signal.SIGKILL, 1))
        assert job.steps_with(2, went_on - 1)[0]["step"] >= first
        job.wait_for_workers(3, went_on)
    assert job.end() == set(range(number))
    job.check(reference)


@pytest.mark.slow
def test_a_worker_is_killed_while_it_saves(start, tmp_path, reference):
    job = Job(start, tmp_path, "--workers", "1:3", more=["saves"])
    job.wait_for_step(5)
    (tmp_path / "die").touch()
    went_on = job.wait_for_workers(2, time.time())
    job.wait_for_workers(3, went_on)
    assert job.end() == {0, 1, 2}
    job.check(reference)
    assert "was not saved" in job.launcher.stdout + job.launcher.stderr
    assert len(list((tmp_path / "saved").iterdir())) == 2
    w, latest = sg.Variable(np.zeros(3, np.float32)), sg.train.latest_checkpoint(tmp_path / "saved")
    sg.train.Checkpoint(w=w).restore(latest)
    np.testing.assert_allclose(w.numpy(), job.events("epoch")[-1]["w"], rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("victims", [(1,), (0,), (1, 3), (0, 4)])
def test_five_workers_lose_some(start, tmp_path, reference, victims):
    job = Job(start, tmp_path, "--workers", "1:5", "--max-worker-restarts", 0)
    job.wait_for_step(5)
    job.wait_for_workers(5 - len(victims), job.send(signal.SIGKILL, *victims))
    assert job.end() == set(range(5)) - set(victims)
    job.check(reference)


@pytest.mark.slow
def test_one_of_five_comes_back(start, tmp_path, reference):
    job = Job(start, tmp_path, "--workers", "4:5")
    job.wait_for_step(5)
    went_on = job.wait_for_workers(4, job.send(signal.SIGKILL, 3))
    job.wait_for_workers(5, went_on)
    assert job.end() == set(range(5))
    job.check(reference)


@pytest.mark.slow
def test_two_of_three_are_killed_at_once(start, tmp_path, reference):
    job = Job(start, tmp_path, "--workers", "1:3", "--max-worker-restarts", 0)
    job.wait_for_step(5)
    job.wait_for_workers(1, job.send(signal.SIGKILL, 0, 2))
    assert job.end() == {1}
    job.check(reference)


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.1, 0.5, 1.0])
@pytest.mark.parametrize(("workers", "second"), [(3, 0), (3, 2), (5, 0), (5, 2)])
def test_a_worker_is_killed_while_the_others_form_anew(
    start, tmp_path, reference, workers, second, delay
):
    job = Job(start, tmp_path, "--workers", f"1:{workers}", "--max-worker-restarts", 0)
    job.wait_for_step(5)
    job.send(signal.SIGKILL, 1)
    time.sleep(delay)  # the moment is what is tried out
    job.wait_for_workers(workers - 2, job.send(signal.SIGKILL, second))
    assert job.end() == set(range(workers)) - {1, second}
    job.check(reference)


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.3, 1.0])
def test_a_worker_that_has_come_back_is_killed_again(start, tmp_path, reference, delay):
    job = Job(start, tmp_path, "--workers", "1:3")
    job.wait_for_step(5)
    job.send(signal.SIGKILL, 2)
    job.wait_until(lambda: len([e for e in job.events("start") if e["task"] == 2]) == 2)
    time.sleep(delay)  # while it is let in, or has just been
    job.wait_for_workers(3, job.send(signal.SIGKILL, 2))
    job.end()
    job.check(reference)


@pytest.mark.slow
def test_all_but_one_are_killed_and_come_back(start, tmp_path, reference):
    job = Job(start, tmp_path, "--workers", "1:3")
    job.wait_for_step(5)
    job.wait_for_workers(3, job.send(signal.SIGKILL, 0, 1))
    job.end()
    job.check(reference)


@pytest.mark.slow
def test_a_stopped_worker_is_left_behind_and_starts_again_when_it_wakes_up(
    start, tmp_path, reference
):
    job = Job(start, tmp_path, "--workers", "2:3")
    job.wait_for_step(5)
    pid = job.latest_pid(1)
    stopped = job.send(signal.SIGSTOP, 1)
    assert job.wait_for_workers(2, stopped) - stopped > 5
    os.kill(pid, signal.SIGCONT)
    job.wait_for_workers(3, time.time())
    job.end()
    job.check(reference)
    assert "continued without it" in job.launcher.stdout + job.launcher.stderr
    assert pid not in {e["pid"] for e in job.events("end")}


@pytest.mark.slow
def test_too_few_workers_wait_for_others_and_name_those_that_are_missing(start, tmp_path):
    job = Job(start, tmp_path, "--workers", "3:3", "--max-worker-restarts", 0, more=[60])
    job.wait_for_step(5)
    job.send(signal.SIGKILL, 1)
    ended = job.launcher.finish(SECONDS)
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
    job = start("run", "--workers", "1:2", program).finish(SECONDS)
    assert job.returncode == 1
    assert "a mistake" in job.stderr


class JobOfNodes(Job):
    """Three nodes with a worker each, on this machine."""

    def __init__(self, start, folder):
        with ReservedPorts(1) as ports:
            self.endpoint = f"127.0.0.1:{next(iter(ports))}"
        self.folder, self.worker = folder, WORKER
        self.start = start
        self.launchers = [self.start_node(rank) for rank in range(3)]
        self.launcher = self.launchers[0]

    def start_node(self, rank):
        flags = ["--nnodes", "1:3", "--node-rank", rank, "--rdzv-endpoint", self.endpoint]
        secret = {"STRATAGEM_CLUSTER_SECRET": "correct horse battery staple, thrice"}
        return self.start("run", *flags, WORKER, self.folder, MOST_EPOCHS, PAUSE, env=secret)


@pytest.mark.slow
def test_a_lost_node_comes_back(start, tmp_path, reference):
    job = JobOfNodes(start, tmp_path)
    job.wait_for_step(5)
    job.launchers[2].process.kill()
    went_on = job.wait_for_workers(2, time.time())
    job.start_node(2)
    job.wait_for_workers(3, went_on)
    assert job.end() == {0, 1, 2}
    job.check(reference)


@pytest.mark.slow
def test_the_other_nodes_go_on_without_the_first(start, tmp_path, reference):
    job = JobOfNodes(start, tmp_path)
    job.wait_for_step(5)
    job.launchers[0].process.kill()
    job.launcher = job.launchers[1]
    job.wait_for_workers(2, time.time())
    assert job.end() == {1, 2}
    job.check(reference)
    assert job.launchers[2].finish(SECONDS).returncode == 0
    assert "the tasks of this node continue" in job.launchers[2].stderr
