"""The real ``mpirun`` and ``torchrun``: workers in step as they are, servers with roles by rank."""

import functools
import os
import re
import shutil
import subprocess
import sys

import pytest

from conftest import IN_STEP, SERVERS
from stratagem._src.cluster.reserved_ports import ReservedPorts

pytestmark = pytest.mark.timeout(500)
TORCHRUN = os.environ.get("TORCHRUN", "torchrun")
ROLES = ["--task", "by-rank", "--chief", "--workers", "1", "--ps", "1"]


def mpirun(number):
    return ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", str(number)]


def torchrun(number):
    with ReservedPorts(1) as [port]:
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


LATE = """
if [ "${OMPI_COMM_WORLD_RANK:-$RANK}" = $0 ]; then until [ -e come ]; do sleep 0.1; done; fi; exec "$@"
"""
BY_RANK = ["-m", "stratagem", "run", "--task", "by-rank", "--workers", "2"]


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize(
    ("late", "command", "said"),
    [
        pytest.param(1, [], "worker 0 waits for worker 1 to start (5 s", id="plain-1"),
        pytest.param(0, [], "process 1 waits for the leader at", id="plain-0"),
        pytest.param(1, BY_RANK, "stratagem: 5 s: waiting for worker 1", id="by-rank-1"),
        pytest.param(0, BY_RANK, "stratagem: worker 1, 5 s: waiting for worker 0", id="by-rank-0"),
    ],
)
def test_who_waits_says_for_whom(start, program, tmp_path, launcher, late, command, said):
    late_one = ["sh", "-c", LATE, str(late)]
    job = start(*launcher(2), *late_one, sys.executable, *command, program(IN_STEP))
    heard = ""
    while said not in heard:
        line = job.stderr.readline()
        assert line, heard
        heard += line
    (tmp_path / "come").touch()
    out, err = job.communicate(timeout=150)
    assert job.returncode == 0, heard + out + err
    assert out.count("workers 2 sum [3.0]") == 2


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_task_that_fails_ends_all_and_is_named_once(run, program, launcher):
    source = "import os, time\nif 'ps' in os.environ['TF_CONFIG'][-30:]: exit(7)\ntime.sleep(100)"
    flags = [*ROLES, "--max-worker-restarts", "0"]
    job = run(*launcher(3), sys.executable, "-m", "stratagem", "run", *flags, program(source))
    assert job.returncode != 0
    assert job.err.count("stratagem: ps 0 failed with exit code 7") == 1
