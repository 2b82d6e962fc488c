"""The real ``mpirun`` and ``torchrun``: workers in step as they are, servers with roles by rank."""

import functools
import os
import re
import shutil
import subprocess
import sys

import pytest

from conftest import IN_STEP, SERVERS
from stratagem._src.cluster.held_ports import HeldPorts

pytestmark = pytest.mark.timeout(300)
TORCHRUN = os.environ.get("TORCHRUN", "torchrun")
ROLES = ["--task", "by-rank", "--chief", "--workers", "1", "--ps", "1"]


def mpirun(number):
    return ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", str(number)]


def torchrun(number):
    with HeldPorts(1) as [port]:
        # Two ports: its own store, and the one after it for worker 0.
        place = [f"--nproc-per-node={number}", "--master-addr=127.0.0.1", f"--master-port={port}"]
    return [TORCHRUN, *place, "--no-python"]


LAUNCHERS = [
    pytest.param(
        mpirun,
        id="mpirun",
        marks=pytest.mark.skipif(
            shutil.which("mpirun") is None,
            reason="mpirun is not installed: apt-get install openmpi-bin",
        ),
    ),
    pytest.param(
        torchrun,
        id="torchrun",
        marks=pytest.mark.skipif(
            shutil.which(TORCHRUN) is None,
            reason="torchrun is not installed: pip install torch, and name it in TORCHRUN",
        ),
    ),
]


@pytest.fixture
def start(mark, tmp_path):
    """Starts a command, with a secret in a file."""
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef" * 2)
    secret.chmod(0o600)
    started = []

    def start(*command):
        process = subprocess.Popen(
            command,
            env={**os.environ, "STRATAGEM_CLUSTER_SECRET_FILE": str(secret), "NO_COLOR": "1"},
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.terminate()
        process.communicate(timeout=30)


@pytest.fixture
def run(start):
    """Runs a command to its end."""

    def run(*command):
        process = start(*command)
        process.out, process.err = process.communicate(timeout=200)
        return process

    return run


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_workers_in_step_as_they_are(run, program, launcher):
    job = run(*launcher(3), sys.executable, program(IN_STEP))
    assert job.returncode == 0, job.out + job.err
    assert job.out.count("workers 3 sum [6.0]") == 3


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_parameter_servers_by_rank(run, program, launcher):
    job = run(*launcher(3), sys.executable, "-m", "stratagem", "run", *ROLES, program(SERVERS))
    assert job.returncode == 0, job.out + job.err
    assert re.search(r"\[chief 0\].* counted 20.0", job.out)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_observed_job_is_shown_and_told_of(start, watch, launcher):
    command = [*launcher(2), sys.executable, "-m", "stratagem", "run", "--task", "by-rank"]
    watch(functools.partial(start, *command))


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_task_that_fails_ends_all_and_is_named_once(run, program, launcher):
    source = "import os, time\nif 'ps' in os.environ['TF_CONFIG'][-30:]: exit(7)\ntime.sleep(100)"
    flags = [*ROLES, "--max-worker-restarts", "0"]
    job = run(*launcher(3), sys.executable, "-m", "stratagem", "run", *flags, program(source))
    assert job.returncode != 0
    assert job.err.count("stratagem: ps 0 failed with exit code 7") == 1
