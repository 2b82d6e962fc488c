"""Signals whose handlers interrupt the main thread, as those of users do."""

import contextlib
import os
import random
import signal
import threading
import time

SECONDS = 1.0

INTERRUPTS = (KeyboardInterrupt, ValueError)
"""What an interrupt raises; see ``check_interrupt``."""


def check_interrupt(error):
    """Raises an error unless it is an interrupt.

    Since JAX 0.11 an interrupt while a cache of JAX compares its keys is a ``ValueError`` with its text.
    """
    is_in_cache = str(error).startswith("Cache keys should be comparable")
    if not isinstance(error, KeyboardInterrupt) and not is_in_cache:
        raise error


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


class RandomInterrupts:
    """Raises an error in the main thread at random moments, as Ctrl-C and some handlers do.

    Args:
        error: The class of the error.
    """

    def __init__(self, error=KeyboardInterrupt):
        self._error = error
        self._random = random.Random(0)
        self.armed = False

    def __enter__(self):
        self._before = signal.signal(signal.SIGALRM, self._handle)
        return self

    def __exit__(self, *_):
        self.disarm()
        signal.signal(signal.SIGALRM, self._before)

    def arm(self, most, interval=0.0):
        """Raises once, within ``most`` seconds; with an interval also if the first signal is lost."""
        self.armed = True
        signal.setitimer(signal.ITIMER_REAL, self._random.uniform(1e-5, most), interval)

    def disarm(self):
        """Raises no more."""
        self.armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)

    def _handle(self, *_):
        if self.armed:
            self.armed = False
            raise self._error
