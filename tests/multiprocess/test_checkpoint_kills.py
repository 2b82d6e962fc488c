"""Processes that are killed while they save."""

import os
import random
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from processes import poll

import stratagem as sg

# Imports once; each line from the parent makes a child that saves until it is killed.
NURSERY = textwrap.dedent("""
    import os, sys
    import numpy as np
    import stratagem as sg
    from stratagem._src.checkpoint.format.tensorstore_loader import tensorstore
    tensorstore()

    def values(number):
        arrays = [np.full((k + 1, 100_000), number, np.float32) for k in range(4)]
        return {"count": number, "arrays": arrays}

    def save(checkpoint, directory):
        while True:
            checkpoint.state = values(checkpoint.state["count"] + 1)
            yield checkpoint.save(directory + "/ckpt")

    def manage(checkpoint, directory):
        manager = sg.train.CheckpointManager(checkpoint, directory, max_to_keep=2)
        manager.restore_or_initialize()
        while True:
            checkpoint.state = values(checkpoint.state["count"] + 1)
            yield manager.save()

    for line in sys.stdin:
        what, directory, number = line.split()
        child = os.fork()
        if child == 0:
            print(os.getpid(), flush=True)
            checkpoint = sg.train.Checkpoint(state=values(int(number)))
            for path in globals()[what](checkpoint, directory):
                checkpoint.sync()
                print(path, flush=True)
        os.waitpid(child, 0)
        print("gone", flush=True)
""")


@pytest.fixture
def nursery(mark):
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", NURSERY],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ},
    )
    yield process
    # A test that fails has left a child that saves for ever.
    for child in psutil.Process(process.pid).children():
        child.kill()
    process.stdin.close()
    process.wait()
    process.stdout.close()


def values_of(path):
    """Returns the number that every element of a checkpoint has."""
    arrays = [np.zeros((k + 1, 100_000), np.float32) for k in range(4)]
    checkpoint = sg.train.Checkpoint(state={"count": 0, "arrays": arrays})
    checkpoint.restore(path).assert_consumed()
    arrays = checkpoint.state["arrays"]
    found = {float(x) for array in arrays for x in (array.min(), array.max())}
    assert found == {checkpoint.state["count"]}, f"{path} mixes {found}"
    return checkpoint.state["count"]


def hidden(directory):
    return [path.name for path in directory.iterdir() if path.name.startswith(".")]


def begin(nursery, what, directory, number):
    """Lets a process save for ever; returns its id when it has saved once, and the path."""
    nursery.stdin.write(f"{what} {directory} {number}\n")
    nursery.stdin.flush()
    return int(nursery.stdout.readline()), nursery.stdout.readline().strip()


def kill_at_random_moments(nursery, what, directory, num_kills, seed):
    choose = random.Random(seed)
    number, left_behind, seconds = 0, 0, 0.03
    for _ in range(num_kills):
        child, first = begin(nursery, what, directory, number)
        saved = [first]
        begun = time.monotonic()
        time.sleep(choose.uniform(0.0, seconds))  # a random moment
        os.kill(child, signal.SIGKILL)
        while (line := nursery.stdout.readline().strip()) != "gone":
            saved.append(line)
        if len(saved) == 1:
            # A save and a half, as long as saves take here now, within reason.
            seconds = min(1.0, max(seconds, 1.5 * (time.monotonic() - begun)))
        number += len(saved)
        left_behind += bool(hidden(directory))
        # Perhaps one more than the child could tell of.
        latest = sg.train.latest_checkpoint(directory)
        assert latest in (saved[-1], f"{directory}/ckpt-{number + 1}")
        number = values_of(latest)
        assert latest == f"{directory}/ckpt-{number}"
        # What earlier kills left is gone: there is one save and one removal under way at most.
        assert len(hidden(directory)) <= 3
        if what == "manage":
            assert len(list(directory.glob("ckpt-*"))) <= 3
    assert left_behind, "no kill came in the midst of a save"
    checkpoint = sg.train.Checkpoint(number=1)
    checkpoint.save(directory / "ckpt")
    checkpoint.sync()
    assert hidden(directory) == []


@pytest.fixture
def directory_in_memory(tmp_path):
    """A directory that is written as quickly as memory, where there is such a thing."""
    try:
        with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
            yield Path(name)
    except FileNotFoundError:
        yield tmp_path


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_last_good_one_stays_and_left_overs_go(nursery, directory_in_memory):
    kill_at_random_moments(nursery, "manage", directory_in_memory, num_kills=10, seed=7)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("what", ["save", "manage"])
def test_many_kills(nursery, tmp_path, what):
    kill_at_random_moments(nursery, what, tmp_path, num_kills=100, seed=8)


def test_a_save_under_way_elsewhere_is_left_alone(nursery, tmp_path):
    child, _ = begin(nursery, "save", tmp_path, 0)
    try:
        poll(lambda: _stop_in_the_midst(child, tmp_path))
        under_way = sorted(hidden(tmp_path))
        checkpoint = sg.train.Checkpoint(number=1)
        path = checkpoint.save(tmp_path / "ckpt")
        checkpoint.sync()
        assert sorted(hidden(tmp_path)) == under_way
        os.kill(child, signal.SIGCONT)
        # It goes on: its own appears, and then one with the next number.
        poll(lambda: Path(f"{tmp_path}/ckpt-{_number(path) + 1}").exists())
    finally:
        os.kill(child, signal.SIGKILL)
    while nursery.stdout.readline().strip() != "gone":
        pass
    for number in (_number(path) - 1, _number(path) + 1):
        assert values_of(f"{tmp_path}/ckpt-{number}") > 0


def _stop_in_the_midst(child, directory):
    os.kill(child, signal.SIGSTOP)
    if any(not name.endswith(".lock") for name in hidden(directory)):
        return True
    os.kill(child, signal.SIGCONT)
    return False


def _number(path):
    return int(path.rpartition("-")[2])
