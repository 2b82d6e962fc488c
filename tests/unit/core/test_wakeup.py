"""Waiting with a time limit, beside signal handlers."""

import signal
import time

import pytest

from stratagem._src.core.wakeup import Wakeup


@pytest.fixture
def on_alarm():
    """Returns what has a handler run in the midst of a wait."""

    def run(handler):
        signal.signal(signal.SIGALRM, lambda *_: handler())
        signal.setitimer(signal.ITIMER_REAL, 0.01)

    before = signal.getsignal(signal.SIGALRM)
    yield run
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_a_wait_ends_although_a_handler_runs_until_its_time_is_over(on_alarm):
    on_alarm(lambda: time.sleep(0.1))
    assert not Wakeup().wait(0.05)


def test_a_handler_may_wake_what_it_interrupts(on_alarm):
    wakeup = Wakeup()
    on_alarm(wakeup.wake)
    assert wakeup.wait(60)


def test_one_that_is_woken_twice_waits_again():
    wakeup = Wakeup()
    for _ in range(2):
        wakeup.wake()
    assert wakeup.wait(60)
    assert not wakeup.wait(0.001)
