"""Programs that are launched and not waited for."""

import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import pytest

from stratagem._src.control_plane.watchdog import Watchdog
from stratagem._src.process.background import Background


@pytest.fixture
def watchdog():
    background = Background("a test")
    asked = threading.Event()

    def find_loss(seconds, num_launched_since):
        asked.set()

    watchdog = Watchdog(background, find_loss, lambda: False, lambda: 1.0)
    watchdog.asked = asked
    yield watchdog
    watchdog.close()
    assert background.join(10) == []


def slow_program():
    # XLA runs small programs at once.
    return [jax.jit(lambda x: jnp.linalg.matrix_power(x, 2**30))(jnp.eye(1600))]


def test_a_program_in_flight_is_watched(watchdog):
    assert not watchdog.has_unfinished()
    [result] = watchdog.launch(slow_program)
    assert watchdog.has_unfinished()
    assert watchdog.asked.wait(20)
    jax.block_until_ready(result)
    assert not watchdog.has_unfinished()


def test_nothing_is_looked_for_when_nothing_is_in_flight(watchdog):
    jax.block_until_ready(watchdog.launch(lambda: ([], [jnp.ones(3)])))
    assert not watchdog.has_unfinished()
    assert not watchdog.asked.wait(0.6)


def test_a_launch_that_fails_is_over(watchdog):
    with pytest.raises(KeyError):
        watchdog.launch(lambda: {}["missing"])
    assert not watchdog.has_unfinished()


# A thread in the C library's sleep() stands for one in the driver.
LOST = """
import ctypes, sys, time
from stratagem._src.control_plane import watchdog
from stratagem._src.process.background import Background
watchdog.GRACE_SECONDS = 1.0
told = []
dog = watchdog.Watchdog(
    Background("a test"), lambda *_: "worker 1 is gone.", lambda: bool(told), lambda: 2.0
)
def wait_in_the_driver():
    ctypes.CDLL(None).sleep(60)
    return []
def go_on_for_a_while():
    # From line to line: a loop that never leaves its line looks like a wait.
    time.sleep(0.4)
    time.sleep(0.4)
    time.sleep(0.4)
    time.sleep(0.4)
    time.sleep(0.4)
    time.sleep(0.4)
    time.sleep(0.4)
    return []
"""


@pytest.mark.parametrize(
    "program",
    [
        "dog.launch(wait_in_the_driver)",
        pytest.param("told.append(1); dog.launch(wait_in_the_driver)", marks=pytest.mark.slow),
        "dog.launch(go_on_for_a_while); dog.launch(wait_in_the_driver)",
    ],
)
def test_a_wait_in_the_driver_ends_with_the_process(program):
    source = f"{LOST}print('unflushed', end='')\n{program}"
    finished = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=50
    )
    assert finished.returncode == 1
    assert finished.stdout == "unflushed"
    assert finished.stderr.startswith("worker 1 is gone. The wait for it inside the driver cannot")


def test_a_process_that_moves_is_not_ended():
    finished = subprocess.run(
        [sys.executable, "-c", f"{LOST}dog.launch(go_on_for_a_while)"], timeout=50
    )
    assert finished.returncode == 0
