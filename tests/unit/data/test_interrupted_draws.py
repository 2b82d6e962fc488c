"""Loops over a dataset that signal handlers interrupt by an exception: each element comes once."""

import functools
import random
import signal
import threading
import time

import numpy as np
import pytest

import stratagem as sg
from stratagem._src.process.signal_handlers import is_raised_by_signal_handler

NUM_ELEMENTS = 300
MAX_INTERRUPTS = 60
DEADLINE_SECONDS = 60


class Alarm(Exception):
    """An ordinary exception, as a handler that limits the time of something raises."""


def mapped():
    return sg.data.Dataset.range(NUM_ELEMENTS).map(lambda x: x + 0).shuffle(9, seed=1)


def generated():
    spec = sg.TensorSpec((), np.int32)
    return sg.data.Dataset.from_generator(lambda: iter(range(NUM_ELEMENTS)), spec)


def prefetched():
    return sg.data.Dataset.range(NUM_ELEMENTS).map(lambda x: x, num_parallel_calls=2).prefetch(4)


def without_errors():
    def fails_sometimes(x):
        if x % 7 == 3:
            raise ValueError
        return x

    return sg.data.Dataset.range(NUM_ELEMENTS).map(fails_sometimes).ignore_errors()


def distributed():
    strategy = sg.distribute.OneDeviceStrategy("CPU:0")
    return strategy.experimental_distribute_dataset(mapped())


EXPECTED = {without_errors: [x for x in range(NUM_ELEMENTS) if x % 7 != 3]}


class Interrupts:
    """Raises an exception in the main thread at random moments, while armed."""

    def __init__(self, error):
        self.error, self.armed, self.count = error, False, 0
        self._choose = random.Random(0)

    def __enter__(self):
        self._before = signal.signal(signal.SIGALRM, self._interrupt)
        return self

    def _interrupt(self, *_):
        if self.armed:
            self.armed = False
            self.count += 1
            raise self.error

    def arm(self):
        if self.count < MAX_INTERRUPTS:  # on a busy machine no element might ever come
            self.armed = True
            signal.setitimer(signal.ITIMER_REAL, self._choose.uniform(1e-5, 1e-3))

    def __exit__(self, *_):
        self.armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._before)


def draw_all(iterator, interrupts):
    """Draws by loops, which Python does not interrupt between a draw and the loop's variable."""
    seen = []
    while True:
        try:
            interrupts.arm()
            for x in iterator:
                seen += [x]
            interrupts.armed = False
        except interrupts.error:
            continue
        return [int(x) for x in seen]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.usefixtures("forgotten_starts")
@pytest.mark.parametrize("error", [KeyboardInterrupt, Alarm])
@pytest.mark.parametrize(
    "make",
    [
        mapped,
        generated,
        # An interrupt in Python's Thread.start can leave the thread that it started waiting for ever.
        pytest.param(prefetched, marks=pytest.mark.slow),
        without_errors,
        distributed,
    ],
)
def test_an_interrupted_loop_gets_each_element_once(make, error):
    iterator = iter(make())
    with Interrupts(error) as interrupts:
        seen = draw_all(iterator, interrupts)
    assert interrupts.count > 0
    assert sorted(seen) == EXPECTED.get(make, list(range(NUM_ELEMENTS)))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.usefixtures("forgotten_starts")
@pytest.mark.parametrize("error", [KeyboardInterrupt, Alarm])
@pytest.mark.parametrize("make", [mapped, distributed])
def test_an_interrupted_loop_beside_one_of_another_thread(make, error):
    iterator, others = iter(make()), []

    def draw_slowly():
        for x in iterator:
            others.append(int(x))
            time.sleep(1e-4)

    thread = threading.Thread(target=draw_slowly)
    with Interrupts(error) as interrupts:
        thread.start()
        seen = draw_all(iterator, interrupts)
    thread.join(DEADLINE_SECONDS)
    assert not thread.is_alive()
    # An element that an interrupt put back may come when the other thread has seen the end.
    seen += [int(x) for x in iterator]
    assert sorted(seen + others) == list(range(NUM_ELEMENTS))


@pytest.mark.parametrize("before_it", [0, 3])
def test_an_interrupt_that_wakes_the_next_thread_loses_no_element(monkeypatch, before_it):
    """The element has left the stream, and a call follows before the caller has it."""
    iterator = iter(sg.data.Dataset.range(8))
    drawn = [int(next(iterator)) for _ in range(before_it)]

    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(iterator, "_wake", interrupted)
    turn = threading.Lock()
    turn.acquire()
    iterator._waiting.append(turn)
    for _ in range(2):  # the second time it is an element that was put back
        with pytest.raises(KeyboardInterrupt):
            next(iterator)
    monkeypatch.undo()
    state = iterator.get_state()
    assert drawn + [int(x) for x in iterator] == list(range(8))
    iterator.set_state(state)
    assert drawn + [int(x) for x in iterator] == list(range(8))


def raise_in_handler(handler):
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)


def fail(*_):
    raise Alarm


def fail_without_being_installed(*_):
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    raise Alarm


def fail_below(*_):
    fail()


class Interrupted:
    """Is interrupted when asked for its number, without a Python frame of its own."""

    __index__ = staticmethod(functools.partial(signal.raise_signal, signal.SIGALRM))


@pytest.mark.parametrize(
    "handler", [fail, fail_below, fail_without_being_installed, functools.partial(fail, 1)]
)
def test_an_exception_of_a_handler_is_told_from_others(handler):
    with pytest.raises(Alarm) as raised:
        raise_in_handler(handler)
    assert is_raised_by_signal_handler(raised.value)
    with pytest.raises(Alarm) as raised:
        fail_below(signal.SIGUSR1, None)
    assert not is_raised_by_signal_handler(raised.value)


def test_frames_of_cython_between_a_handler_and_the_code_that_it_interrupts():
    with Interrupts(Alarm) as interrupts:
        interrupts.armed = True
        with pytest.raises(Alarm) as raised:
            np.random.SeedSequence(1).generate_state(Interrupted())
    assert any(str(entry.path).endswith(".pyx") for entry in raised.traceback)
    assert is_raised_by_signal_handler(raised.value)
