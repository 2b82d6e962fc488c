"""A process under its supervisor."""

import os
import select
import signal
import time

import pytest

from stratagem._src.launcher.supervised_process import SupervisedProcess

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("mark")]


def wait(process, seconds=30.0):
    deadline = time.monotonic() + seconds
    while True:
        left = deadline - time.monotonic()
        assert left > 0, "the process is still there"
        if select.select([process.control], [], [], left)[0] and process.read_control():
            return


@pytest.fixture
def start(mark):
    processes = []

    def start(*command):
        processes.append(SupervisedProcess(command, os.environ))
        return processes[-1]

    yield start
    for process in processes:
        process.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_is_not_lost_however_early_it_comes(start, number):
    processes = [start("sleep", "60") for _ in range(10)]
    for process in processes:
        process.stop(number, seconds=60)
    for process in processes:
        wait(process)
        assert process.returncode == -number
        assert process.stopped_by_launcher


def test_return_code_and_output(start):
    process = start("sh", "-c", "echo out; echo err >&2; exit 7")
    wait(process)
    assert (process.returncode, process.stopped_by_launcher) == (7, False)
    assert (os.read(process.stdout, 100), os.read(process.stderr, 100)) == (b"out\n", b"err\n")


def test_command_that_does_not_exist(start):
    process = start("no-such-command")
    wait(process)
    assert process.returncode == 127
    assert b"cannot run no-such-command" in os.read(process.stderr, 200)


def test_task_has_the_usual_signals_and_no_descriptors_of_ours(start):
    process = start("sh", "-c", "grep SigIgn /proc/self/status; ls /proc/self/fd")
    wait(process)
    ignored, *descriptors = os.read(process.stdout, 1000).decode().split("\n")
    mask = int(ignored.split()[1], 16)
    usual = (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE, signal.SIGTERM, signal.SIGCHLD)
    assert not [number for number in usual if mask >> (number - 1) & 1]
    assert len([number for number in descriptors if number]) == 4  # ls opens the folder itself


def test_closing_ends_it(start):
    process = start("sleep", "60")
    began = time.monotonic()
    process.close()
    assert time.monotonic() - began < 30
