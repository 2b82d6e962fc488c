"""Islands under ``stratagem run --islands``: their numbers, and what becomes of one that is killed."""

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest
from processes import poll

pytestmark = pytest.mark.timeout(300)

WORKER = Path(__file__).with_name("island_worker.py")
FEATURES, ROWS = 6, 8
SECONDS = 120


def notes(folder, island=None):
    found = []
    for file in folder.glob("island-*.jsonl"):
        _, number, worker, _ = file.stem.split("-")
        for line in file.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                found.append({**json.loads(line), "island": int(number), "worker": int(worker)})
    found.sort(key=lambda one: one["time"])
    return [one for one in found if island in (None, one["island"])]


def synchronous_sgd(steps):
    """Returns what one process has that takes the gradients of the whole batches."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, 2 * ROWS, FEATURES)).astype(np.float32)
    y = x @ np.arange(FEATURES, dtype=np.float32) + rng.normal(size=x.shape[:2])
    w = np.zeros(FEATURES)
    for inputs, targets in zip(x[:steps], y[:steps].astype(np.float32), strict=True):
        w -= 0.05 * 2 * (inputs @ w - targets) @ inputs / (2 * ROWS)
    return w


@pytest.mark.parametrize(
    ("num_workers", "kind"),
    [
        (1, "loop"),
        pytest.param(2, "loop", marks=pytest.mark.slow),
        pytest.param(1, "fit", marks=pytest.mark.slow),
        pytest.param(2, "fit", marks=pytest.mark.slow),
    ],
)
def test_every_step_averaged_is_synchronous_sgd(start, tmp_path, num_workers, kind):
    flags = ("--islands", 2, "--workers", num_workers)
    ended = start("run", *flags, WORKER, tmp_path, 12, 1, kind).finish(SECONDS)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    ends = [one for one in notes(tmp_path) if one["event"] == "end"]
    assert len(ends) == 2 * num_workers
    assert all(one["w"] == ends[0]["w"] for one in ends)  # the same bits, in all workers
    np.testing.assert_allclose(ends[0]["w"], synchronous_sgd(12), rtol=1e-4)
    sent = [one["metrics"]["bytes_sent"] for one in ends if one["worker"] == 0]
    assert sent == [12 * 4 * FEATURES] * 2


def test_an_island_that_is_killed_is_done_without_and_returns(start, tmp_path):
    job = start("run", "--islands", 2, "--workers", 1, WORKER, tmp_path, 0, 5, "loop")

    def wait_until(condition):
        def holds():
            if job.process.poll() is not None:
                ended = job.finish()
                pytest.fail(f"the job has ended: {ended.stdout}{ended.stderr}")
            return condition()

        return poll(holds, SECONDS)

    def steps_with(island, islands, since=0.0):
        return [
            one
            for one in notes(tmp_path, island)
            if one["event"] == "step" and one["islands"] == islands and one["time"] > since
        ]

    wait_until(lambda: steps_with(0, 2))
    victim = steps_with(1, 2)[-1] if steps_with(1, 2) else wait_until(lambda: steps_with(1, 2))[-1]
    os.kill(victim["pid"], signal.SIGKILL)
    alone = wait_until(lambda: steps_with(0, 1))[0]
    together = wait_until(lambda: steps_with(0, 2, alone["time"]))[0]
    (tmp_path / "enough").touch()
    ended = job.finish(SECONDS)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "island 1 was lost (exit code 137); restarting it" in ended.stderr
    joined = [one for one in notes(tmp_path, 1) if one["event"] == "joined"]
    # It continues where island 0 was, at an outer step, and not at its own beginning.
    assert alone["num_steps"] <= joined[-1]["num_steps"] < together["num_steps"]
    assert joined[-1]["num_steps"] % 5 == 0
    assert any(joined[-1]["w"])


def test_an_island_that_fails_by_its_own_program_ends_all(start, script, tmp_path):
    program = script("sys.exit(3) if os.environ['STRATAGEM_ISLAND'] == '1' else hang()\n")
    ended = start("run", "--islands", 2, program).finish(SECONDS)
    assert ended.returncode == 3
    assert "island 1 failed with exit code 3; stopping all" in ended.stderr


def test_an_island_that_is_lost_after_another_has_finished_stays_away(start, script, tmp_path):
    program = script(
        "launcher = Path(sys.argv[1])\n"
        "if os.environ['STRATAGEM_ISLAND'] == '0':\n"
        "    supervisor = Path(f'/proc/{os.getppid()}/stat').read_text().rpartition(')')[2].split()\n"
        "    launcher.with_suffix('.new').write_text(supervisor[1])\n"
        "    launcher.with_suffix('.new').rename(launcher)\n"
        "    sys.exit()\n"
        "while not launcher.exists() or Path(f'/proc/{launcher.read_text()}').exists():\n"
        "    time.sleep(0.01)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = start("run", "--islands", 2, program, tmp_path / "launcher").finish(SECONDS)
    assert ended.returncode == 0, ended.stderr
    assert "after another finished; not restarting it" in ended.stderr


def test_flags(start):
    ended = start("run", "--islands", 2, "--ps", 1, "train.py").finish()
    assert ended.returncode == 2
    assert "--ps cannot be used with --islands" in ended.stderr
    ended = start("run", "--islands", 2, "--workers", 3, "--dry-run", "train.py").finish()
    assert ended.returncode == 0
    assert "# island 1\nstratagem run --name=train --workers=3 train.py" in ended.stdout
