"""Interrupts at random moments: a call has happened or has not, and everything can be used on."""

import gc
import itertools
import sys
import time

import jax.numpy as jnp
import numpy as np
import pytest

import stratagem as sg
from handlers import INTERRUPTS, RandomInterrupts, check_interrupt
from stratagem._src.core.thread_state import THIS_THREAD
from stratagem._src.mesh.dispatch_queue import QUEUE
from stratagem._src.variables.locking import ACTIVE_CALLS, STORAGE

SECONDS = 1.5
SUM = {"aggregation": sg.VariableAggregation.SUM}
# How long after its begin a call is interrupted, at most.
KINDS = {"plain": 2e-4, "returning": 4e-4, "mirrored": 2e-3, "eager": 2e-2}


# Whose functions are interrupted when they are called: where Python runs handlers, too.
INTERRUPTED = ("/stratagem/_src/", "/contextlib.py", "/sharding_impls.py")


def make(kind):
    strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    if kind in ("plain", "returning"):
        variables = [sg.Variable(np.zeros(4, np.float32)) for _ in range(2)]
        added = lambda: [v.assign_add(jnp.ones(4)).read_value() for v in variables]  # noqa: E731
        return variables, sg.function(added if kind == "returning" else lambda: (added(), None)[1])
    with strategy.scope():
        variables = [sg.Variable(np.zeros(4, np.float32), **SUM) for _ in range(2)]
        with sg.distribute.experimental.FullySharded(min_size=2):
            variables.append(sg.Variable(np.zeros(4, np.float32), **SUM))

    def run():
        strategy.run(lambda: [v.assign_add(jnp.ones(4)) for v in variables] and None)

    return variables, run if kind == "eager" else sg.function(run)


def check(variables):
    assert len({tuple(v.numpy()) for v in variables}) == 1
    assert (STORAGE.busy, QUEUE.busy, ACTIVE_CALLS) == (False, False, [])
    thread = THIS_THREAD.state
    assert (thread.journal, thread.strategy_frames, thread.state_frames) == (None, [], [])
    assert gc.isenabled()


def interrupt_call(number, call):
    """Calls something that is interrupted in the so many-th call of a function.

    Returns:
        Whether there were so many calls. Python drops the interrupt where nobody could catch it.
    """
    numbers, reached = itertools.count(), False

    def profile(frame, event, _):
        nonlocal reached
        counts = event == "call" and any(p in frame.f_code.co_filename for p in INTERRUPTED)
        if counts and next(numbers) == number:
            reached = True
            raise KeyboardInterrupt

    sys.setprofile(profile)
    try:
        call()
    except INTERRUPTS as error:
        sys.setprofile(None)
        check_interrupt(error)
    finally:
        sys.setprofile(None)
    return reached


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.usefixtures("forgotten_starts")
@pytest.mark.parametrize("kind", KINDS)
def test_interrupts_at_every_call(kind):
    variables, step = make(kind)
    step(), step(), step()
    check(variables)
    number = 0
    while interrupt_call(number, step):
        check(variables)
        number += 1
    assert number > 3
    reached = variables[0].numpy()[0]
    step()
    assert variables[0].numpy()[0] > reached


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.usefixtures("forgotten_starts")
@pytest.mark.parametrize("kind", KINDS)
def test_interrupts_at_random_moments(kind):
    variables, step = make(kind)
    step(), step(), step()
    interrupts, end = 0, time.monotonic() + SECONDS
    with RandomInterrupts() as interrupt:
        while time.monotonic() < end:
            try:
                interrupt.arm(KINDS[kind], 0.01)
                # Not `while interrupt.armed`: Python 3.13 has no handler for an interrupt at the end of
                # such a loop (python/cpython#130279).
                for _ in iter(lambda: interrupt.armed, False):
                    step()
            except INTERRUPTS as error:
                check_interrupt(error)
                interrupts += 1
            interrupt.disarm()
            check(variables)
    assert interrupts > 5
    reached = variables[0].numpy()[0]
    step()
    assert variables[0].numpy()[0] > reached


NUM_ELEMENTS = 200
MAX_INTERRUPTS = 40


def distributed_elements(strategy):
    return strategy.experimental_distribute_dataset(sg.data.Dataset.range(NUM_ELEMENTS).batch(2))


def shuffled_elements(_):
    return sg.data.Dataset.range(NUM_ELEMENTS).map(lambda x: x + 0).shuffle(9, seed=1).batch(2)


def generated_elements(_):
    spec = sg.TensorSpec((), np.int32)
    return sg.data.Dataset.from_generator(lambda: iter(range(NUM_ELEMENTS)), spec).batch(2)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.usefixtures("forgotten_starts")
@pytest.mark.parametrize("elements", [distributed_elements, shuffled_elements, generated_elements])
def test_an_interrupted_step_uses_each_element_once(elements):
    strategy = sg.distribute.OneDeviceStrategy("CPU:0")
    with strategy.scope():
        uses = sg.Variable(np.zeros(NUM_ELEMENTS, np.int32))

    def replica(x):
        uses.assign_add(jnp.zeros(NUM_ELEMENTS, jnp.int32).at[x].add(1))

    @sg.function
    def step(iterator):
        strategy.run(replica, args=(next(iterator),))

    step(iter(elements(strategy)))
    uses.assign(np.zeros(NUM_ELEMENTS, np.int32))
    iterator = iter(elements(strategy))
    interrupts, ended = 0, False
    with RandomInterrupts() as interrupt:
        while not ended:
            try:
                if interrupts < MAX_INTERRUPTS:  # on a busy machine no step might ever end
                    interrupt.arm(2e-3)
                while True:
                    step(iterator)
            except INTERRUPTS as error:
                check_interrupt(error)
                interrupts += 1
            except sg.errors.OutOfRangeError:
                interrupt.armed, ended = False, True  # no call, at the start of which one may come
    assert interrupts > 0
    assert np.flatnonzero(uses.numpy() != 1).tolist() == []
