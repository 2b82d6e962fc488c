"""The asynchronous example, while its workers are killed."""

import os
import re
import signal
from pathlib import Path

import pytest
from processes import poll

EXAMPLE = Path(__file__).parents[2] / "examples" / "recommender.py"


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_the_recommender_learns_while_workers_are_killed(start, tmp_path):
    flags = ["--workers", 2, "--ps", 2, "--chief", "--log-dir", "logs"]
    job = start("run", *flags, EXAMPLE, "--steps", 800, env={"JAX_PLATFORMS": "cpu"})

    def log(task):
        path = tmp_path / "logs" / f"{task}.log"
        return path.read_text() if path.exists() else ""

    def steps_done():
        return max(map(int, re.findall(r"(\d+)/800", log("chief-0"))), default=0)

    for kill in range(2):
        reached = poll(lambda kill=kill: steps_done() > 100 * (kill + 1) and steps_done(), 60)
        worker = re.findall(r"process (\d+)", log(f"worker-{kill}"))[-1]
        os.kill(int(worker), signal.SIGKILL)
        poll(lambda reached=reached: steps_done() > reached, 30)
    job.finish(timeout=90)
    assert job.returncode == 0, job.stderr
    for worker in range(2):
        assert f"worker {worker} was killed by SIGKILL; restarting it" in job.stderr
    [before] = re.findall(r"before: area under the curve ([\d.]+)", job.stdout)
    [after] = re.findall(r"after: area under the curve ([\d.]+)", job.stdout)
    assert 0.45 < float(before) < 0.55
    assert float(after) > 0.75
