"""Signals whose handlers interrupt the main thread, as those of users do."""

import contextlib
import os
import signal
import threading
import time

SECONDS = 1.0


@contextlib.contextmanager
def signals(handler, seconds):
    """Calls ``handler`` in the main thread every few moments, never while it runs."""
    running = False

    def once(*_):
        nonlocal running
        if not running:
            running = True
            try:
                handler()
            finally:
                running = False

    before = signal.signal(signal.SIGALRM, once)
    signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def for_a_while(step, seconds=SECONDS):
    end, steps = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        step()
        steps += 1
    return steps


@contextlib.contextmanager
def on_signal(handler):
    """Yields what makes the main thread call ``handler``, from any thread, and waits for it."""
    done = threading.Event()

    def handle(*_):
        try:
            handler()
        finally:
            done.set()

    def send():
        done.clear()
        os.kill(os.getpid(), signal.SIGUSR1)
        assert done.wait(60)

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        yield send
    finally:
        signal.signal(signal.SIGUSR1, before)
