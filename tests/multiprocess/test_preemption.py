"""SIGTERM to one process: all save at the same step, and go on as if nothing had happened."""

import json
import os
import signal
import time
from pathlib import Path

import pytest
from processes import poll

PROGRAM = Path(__file__).with_name("preempted_worker.py")
STEPS = 30


def steps_of(directory):
    return [json.loads(line) for line in (directory / "steps").read_text().splitlines()]


def ready_in(directory, worker):
    path = directory / f"ready-{worker}"
    return int(poll(lambda: path.exists() and path.read_text(), 60.0))


def flags_of(kind):
    return ["--workers", 3] if kind == "workers" else ["--workers", 1]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The steps of runs that nobody disturbed."""
    known = {}

    def steps(start, kind):
        if kind not in known:
            directory = tmp_path_factory.mktemp(f"undisturbed-{kind}")
            job = start("run", *flags_of(kind), PROGRAM, directory, kind, STEPS, 0).finish(100)
            assert job.returncode == 0, job.stderr
            known[kind] = steps_of(directory)
        return known[kind]

    return steps


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("workers", 1),
        pytest.param("workers", 0, marks=pytest.mark.slow),
        pytest.param("one", 0, marks=pytest.mark.slow),
        pytest.param("workers", "launcher", marks=pytest.mark.slow),
    ],
)
def test_training_goes_on_with_no_step_lost_and_no_example_repeated(
    start, tmp_path, undisturbed, kind, told
):
    command = ["run", *flags_of(kind), "--max-restarts", 1, "--grace-seconds", 30]
    command += [PROGRAM, tmp_path, kind, STEPS, 0]
    job = start(*command)
    pids = [ready_in(tmp_path, worker) for worker in range(3 if kind == "workers" else 1)]
    if told == "launcher":
        job.process.send_signal(signal.SIGTERM)
        job.finish(100)
        assert job.returncode == 143
        assert len(steps_of(tmp_path)) < STEPS
        job = start(*command)
    else:
        os.kill(pids[told], signal.SIGTERM)
    job.finish(100)
    assert job.returncode == 0, job.stderr
    if told != "launcher":
        assert "failed with exit code 42; restart 1 of the job" in job.stderr
    steps, expected = steps_of(tmp_path), undisturbed(start, kind)
    assert [step["step"] for step in steps] == list(range(STEPS))
    assert [sorted(step["examples"]) for step in steps] == [
        sorted(step["examples"]) for step in expected
    ]
    assert [step["loss"] for step in steps] == [step["loss"] for step in expected]
    assert not list(tmp_path.glob("checkpoints/.*-*"))


def test_training_goes_on_until_the_grace_period_is_over(start, tmp_path):
    flags = ["--workers", 2, "--grace-seconds", 30]
    job = start("run", *flags, PROGRAM, tmp_path, "workers", 500, 6)
    pids = [ready_in(tmp_path, worker) for worker in range(2)]
    begun = time.monotonic()
    os.kill(pids[1], signal.SIGTERM)
    poll(lambda: (tmp_path / "checkpoints" / "ckpt-1").exists(), 10.0)
    at_first = len(steps_of(tmp_path))
    job.finish(100)
    assert job.returncode == 42
    assert time.monotonic() - begun > 1.0
    assert len(steps_of(tmp_path)) > at_first
    assert [path.name for path in (tmp_path / "checkpoints").glob("ckpt-*")] == ["ckpt-2"]
