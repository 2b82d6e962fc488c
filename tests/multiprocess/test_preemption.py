"""SIGTERM to one process: all save at the same step, and go on as if nothing had happened."""

import json
import os
import re
import signal
from pathlib import Path

import pytest
from processes import poll

PROGRAM = Path(__file__).with_name("preempted_worker.py")
STEPS = 30
NUM_WORKERS = {"workers": 2, "one": 1}
pytestmark = pytest.mark.timeout(600)


def steps_of(directory):
    return [json.loads(line) for line in (directory / "steps").read_text().splitlines()]


def ready_in(directory, worker):
    path = directory / f"ready-{worker}"
    return int(poll(lambda: path.exists() and path.read_text(), 250.0))


def flags_of(kind):
    return ["--workers", NUM_WORKERS[kind]]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The steps of runs that nobody disturbed."""
    known = {}

    def steps(start, kind):
        if kind not in known:
            directory = tmp_path_factory.mktemp(f"undisturbed-{kind}")
            job = start("run", *flags_of(kind), PROGRAM, directory, kind, STEPS, 0, 0).finish(250)
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
    command += [PROGRAM, tmp_path, kind, STEPS, 0, 0.4]
    job = start(*command)
    pids = [ready_in(tmp_path, worker) for worker in range(NUM_WORKERS[kind])]
    if told == "launcher":
        job.process.send_signal(signal.SIGTERM)
        job.finish(250)
        assert job.returncode == 143
        assert len(steps_of(tmp_path)) < STEPS
        job = start(*command)
    else:
        os.kill(pids[told], signal.SIGTERM)
    job.finish(250)
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


@pytest.mark.slow
def test_training_goes_on_until_the_grace_period_is_over(start, tmp_path):
    flags = ["--workers", 2, "--grace-seconds", 60]
    job = start("run", *flags, PROGRAM, tmp_path, "workers", 10_000, 15, 0.1)
    pids = [ready_in(tmp_path, worker) for worker in range(2)]
    os.kill(pids[1], signal.SIGTERM)
    job.finish(250)
    assert job.returncode == 42
    saved = re.findall(r"Saved \S+/(ckpt-\d) after (\d+) steps", job.stderr)
    assert sorted({name for name, _ in saved}) == ["ckpt-1", "ckpt-2"]
    first, last = (
        int(min(steps for n, steps in saved if n == name)) for name in ("ckpt-1", "ckpt-2")
    )
    assert len(saved) == 4  # by both workers, after the same steps
    assert len(set(saved)) == 2
    assert first < last == len(steps_of(tmp_path))
    assert [path.name for path in (tmp_path / "checkpoints").glob("ckpt-*")] == ["ckpt-2"]


@pytest.mark.slow
def test_every_worker_hears_which_one_is_to_end(start, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import os, pathlib, sys, time\n"
        "import stratagem as sg\n"
        "strategy = sg.distribute.MultiWorkerMirroredStrategy()\n"
        "watcher = sg.distribute.experimental.PreemptionWatcher()\n"
        "task = strategy.cluster_resolver.task_id\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "(folder / f'ready-{task}').write_text(str(os.getpid()))\n"
        "while watcher.preemption_message is None:\n"
        "    time.sleep(0.02)\n"
        "print('heard:', watcher.preemption_message)\n"
        "watcher.block_until_worker_exit()\n"
    )
    job = start("run", "--workers", 3, program, tmp_path)
    pids = [ready_in(tmp_path, worker) for worker in range(3)]
    os.kill(pids[2], signal.SIGTERM)
    job.finish(250)
    assert job.returncode == 0, job.stderr
    assert (
        len(re.findall(r"heard: worker 2 \S+ is being preempted: it received SIGTERM", job.stdout))
        == 3
    )
