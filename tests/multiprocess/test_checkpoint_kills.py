"""Processes that are killed while they save."""

import os
import random
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest
from processes import poll

import stratagem as sg

# Imports once; each line from the parent makes a child that saves until it is killed. JAX needs a second
# to start in a child, so most of them have arrays for variables.
NURSERY = textwrap.dedent("""
    import os, sys
    from pathlib import Path
    import numpy as np
    import stratagem as sg
    from stratagem._src.training.checkpoint_directory import new_directory
    from stratagem._src.training.checkpoint_format import CheckpointWriter

    def values(number):
        arrays = {f"variables/{k}": np.full((k + 1, 20_000), number, np.float32) for k in range(4)}
        return {"count": np.array(number, np.int32), **arrays}

    def save_variables(prefix, number):
        variables = {name: sg.Variable(value) for name, value in values(number).items()}
        checkpoint = sg.train.Checkpoint(**variables)
        while True:
            number += 1
            for name, value in values(number).items():
                variables[name].assign(value)
            yield checkpoint.save(prefix)

    def save_arrays(prefix, number):
        while True:
            number += 1
            with new_directory(Path(prefix)) as new:
                writer = CheckpointWriter(new.hidden)
                for name, value in values(number).items():
                    writer.add(name, value.shape, value.dtype, [value])
                writer.finish({}, {})
                path = new.appear()
            yield path

    for line in sys.stdin:
        what, prefix, number = line.split()
        child = os.fork()
        if child == 0:
            for path in globals()[what](prefix, int(number)):
                print(path, flush=True)
        print(child, flush=True)
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
    process.stdin.close()
    process.wait()
    process.stdout.close()


def values_of(path):
    """Returns the number that every element of a checkpoint has."""
    variables = [sg.Variable(np.zeros((k + 1, 20_000), np.float32)) for k in range(4)]
    count = sg.Variable(0)
    sg.train.Checkpoint(variables=variables, count=count).restore(path)
    found = {float(x) for v in variables for x in np.unique(v.numpy())} | {float(count)}
    assert len(found) == 1, f"{path} mixes {found}"
    return found.pop()


def hidden(directory):
    return [path.name for path in directory.iterdir() if path.name.startswith(".")]


def begin(nursery, what, directory, number):
    """Lets a process save for ever; returns its id when it has saved once, and the path."""
    nursery.stdin.write(f"{what} {directory}/ckpt {number}\n")
    nursery.stdin.flush()
    return int(nursery.stdout.readline()), nursery.stdout.readline().strip()


def kill_at_random_moments(nursery, what, directory, num_kills, seed):
    choose = random.Random(seed)
    number, left_behind = 0, 0
    for _ in range(num_kills):
        child, first = begin(nursery, what, directory, number)
        saved = [first]
        time.sleep(choose.uniform(0.0, 0.03))  # a random moment: a save takes some milliseconds
        os.kill(child, signal.SIGKILL)
        while (line := nursery.stdout.readline().strip()) != "gone":
            saved.append(line)
        number += len(saved)
        left_behind += bool(hidden(directory))
        # Perhaps one more than the child could tell of.
        latest = sg.train.latest_checkpoint(directory)
        assert latest in (saved[-1], f"{directory}/ckpt-{number + 1}")
        number = int(values_of(latest))
        assert latest == f"{directory}/ckpt-{number}"
        # What earlier kills left is gone: there is one save under way at most.
        assert len(hidden(directory)) <= 2
    assert left_behind, "no kill came in the midst of a save"
    v = sg.Variable(1.0)
    sg.train.Checkpoint(v=v).save(directory / "ckpt")
    assert hidden(directory) == []


def test_the_last_good_one_stays_and_left_overs_go(nursery, tmp_path):
    kill_at_random_moments(nursery, "save_arrays", tmp_path, num_kills=20, seed=7)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("what", ["save_arrays", "save_variables"])
def test_many_kills(nursery, tmp_path, what):
    kill_at_random_moments(nursery, what, tmp_path, num_kills=100, seed=8)


def test_a_save_under_way_elsewhere_is_left_alone(nursery, tmp_path):
    child, _ = begin(nursery, "save_variables", tmp_path, 0)
    try:
        poll(lambda: _stop_in_the_midst(child, tmp_path))
        under_way = hidden(tmp_path)
        path = sg.train.Checkpoint(v=sg.Variable(1.0)).save(tmp_path / "ckpt")
        assert hidden(tmp_path) == under_way
        os.kill(child, signal.SIGCONT)
        # It goes on, and takes the next number.
        poll(lambda: any(_number(p) > _number(path) for p in map(str, tmp_path.glob("ckpt-*"))))
    finally:
        os.kill(child, signal.SIGKILL)
    while nursery.stdout.readline().strip() != "gone":
        pass
    after = f"{tmp_path}/ckpt-{_number(path) + 1}"
    assert values_of(after) == _number(after) - 1


def _stop_in_the_midst(child, directory):
    os.kill(child, signal.SIGSTOP)
    if any(not name.endswith(".lock") for name in hidden(directory)):
        return True
    os.kill(child, signal.SIGCONT)
    return False


def _number(path):
    return int(path.rpartition("-")[2])
