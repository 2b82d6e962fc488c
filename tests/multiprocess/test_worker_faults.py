"""Workers that are killed, stopped, stuck or absent: nobody hangs, nobody aborts, and the one is named.

The workers are processes on their own, without a launcher that would end them.
"""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stratagem.cluster.launch.held_ports import HeldPorts

SCRIPT = Path(__file__).with_name("faulty_worker.py")


class Workers:
    """Some workers, and what became of them."""

    def __init__(self, mark, addresses, arguments):
        self.addresses = addresses
        self.processes = []
        for index in range(len(addresses)):
            config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
            environment = {
                **os.environ,
                "TF_CONFIG": json.dumps(config),
                "JAX_NUM_CPU_DEVICES": "1",
            }
            self.processes.append(
                subprocess.Popen(
                    [sys.executable, SCRIPT, *map(str, arguments)],
                    env=environment,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )

    def outcome(self, index, timeout=60):
        """Returns the exit code of a worker, and the last line that it printed as JSON."""
        process = self.processes[index]
        printed, errors = process.communicate(timeout=timeout)
        lines = [line for line in printed.splitlines() if line.startswith("{")]
        assert lines, f"worker {index} ended with {process.returncode}: {printed}\n{errors}"
        return process.returncode, json.loads(lines[-1])

    def name(self, index):
        return f"worker {index} ({self.addresses[index]})"


@pytest.fixture
def workers(mark):
    started = []
    with HeldPorts(3) as ports:
        addresses = [f"127.0.0.1:{port}" for port in ports]

        def start(number, *arguments):
            started.append(Workers(mark, addresses[:number], arguments))
            return started[-1]

        yield start
        for some in started:
            for process in some.processes:
                process.kill()
                process.communicate()


def moment():
    return random.uniform(0.0, 0.5)


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_killed_worker_is_named_by_all_others(workers, victim):
    some = workers(3, "kill", victim, moment(), 30)
    for index in {0, 1, 2} - {victim}:
        code, outcome = some.outcome(index)
        assert code == 0
        assert outcome["error"] == "UnavailableError"
        assert f"{some.name(victim)} is gone" in outcome["text"]
        assert f"{some.name(index)} waited in train.<locals>.step" in outcome["text"]
        # As it was before the call: every step adds 1 in each of the three replicas.
        assert outcome["variable"][0] % 3 == 0
        assert outcome["variable"][0] > 0


def test_a_stopped_worker_is_named(workers):
    some = workers(2, "stop", 0, moment(), 30)
    code, outcome = some.outcome(1)
    assert code == 0
    assert outcome["error"] == "UnavailableError"
    assert f"{some.name(0)} has not been heard of" in outcome["text"]


def test_a_stuck_worker_is_named_at_the_deadline(workers):
    some = workers(2, "stuck", 1, moment(), 4)
    code, outcome = some.outcome(0)
    assert code == 0
    assert outcome["error"] == "UnavailableError"
    assert f"{some.name(1)} is alive but has not come" in outcome["text"]


def test_a_worker_that_never_starts_is_named(workers):
    some = workers(2, "absent", 1, 0, 3)
    _, outcome = some.outcome(0)
    assert outcome["error"] == "UnavailableError"
    assert f"{some.name(1)} did not come within 3 s" in outcome["text"]


def test_a_leader_that_never_starts_is_named(workers):
    some = workers(2, "absent", 0, 0, 3)
    _, outcome = some.outcome(1)
    assert outcome["error"] == "UnavailableError"
    assert f"the leader {some.name(0)}" in outcome["text"]


def test_leaving_early_ends_the_others(workers):
    some = workers(2, "leave", 0, moment(), 30)
    code, outcome = some.outcome(0)
    assert (code, outcome["error"]) == (0, None)
    _, outcome = some.outcome(1)
    assert outcome["error"] == "UnavailableError"
    assert f"{some.name(0)} has" in outcome["text"]


def test_ctrl_c_ends_a_worker_at_once_and_then_the_others(workers):
    some = workers(2, "interrupt", 1, moment(), 30)
    _, outcome = some.outcome(1)
    assert outcome["error"] == "KeyboardInterrupt"
    _, outcome = some.outcome(0)
    assert outcome["error"] == "UnavailableError"
    assert some.name(1) in outcome["text"]


def test_sigterm_ends_a_worker(workers):
    some = workers(2, "terminate", 0, moment(), 30)
    _, outcome = some.outcome(1)
    assert outcome["error"] == "UnavailableError"
    assert f"{some.name(0)} is gone" in outcome["text"]
    some.processes[0].communicate(timeout=30)
    assert some.processes[0].returncode == -signal.SIGTERM


@pytest.mark.parametrize(
    ("fault", "done"), [("shape", "step(int32[6])"), ("order", "all-reduce SUM of float32[6]")]
)
def test_workers_that_run_different_programs_are_told_who_did_what(workers, fault, done):
    some = workers(2, fault, 1, moment(), 30)
    for index in (0, 1):
        code, outcome = some.outcome(index)
        assert code == 0
        assert outcome["error"] == "ReplicaMismatchError"
        assert f"{some.name(1)} is at" in outcome["text"] or f"{some.name(1)} at" in outcome["text"]
        assert done in outcome["text"]
        assert "step(float32[6])" in outcome["text"]
