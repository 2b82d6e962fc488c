"""Signal handlers that interrupt the coordinator's calls."""

import threading
import time

import numpy as np
import pytest

import stratagem as sg
from handlers import RandomInterrupts, for_a_while, signals
from stratagem._src.core.errors import ContextError
from stratagem._src.parameter_server.coordinator import closure_queue
from stratagem._src.parameter_server.coordinator.closure import Closure


def _one():
    return 1


def test_handlers_that_read_save_and_schedule(coordinator, tmp_path):
    with coordinator.strategy.scope():
        variables = [sg.Variable(np.zeros(4, np.float32)) for _ in range(2)]
    checkpoint = sg.train.Checkpoint(variables=variables)
    seen, paths, fetched, refused = [], [], [], []

    def handler():
        seen.append([float(v.numpy()[0]) for v in variables])
        if len(seen) % 20 == 1:
            paths.append(checkpoint.save(tmp_path / "saved"))
        try:
            fetched.append(coordinator.schedule(_one).fetch())
            coordinator.join()
        except ContextError as error:
            refused.append(str(error))

    ones = np.ones(4, np.float32)

    def step():
        values = [coordinator.schedule(_one) for _ in range(5)]
        assert values[0].fetch() == 1
        variables[0].assign_add(ones)
        coordinator.join()
        assert coordinator.done()
        return

    with signals(handler, 0.005):
        steps = for_a_while(step, 3.0)
    checkpoint.sync()
    assert len(seen) > 5
    assert len(fetched) + len(refused) >= len(seen) - 1
    assert all("Set a flag in the handler" in text for text in refused)
    assert float(variables[0].numpy()[0]) == steps
    assert paths


def test_a_call_that_interrupts_a_change_is_refused(coordinator, monkeypatch):
    dispatcher, state = coordinator._dispatcher, coordinator._dispatcher.state
    schedule, refused = state.schedule, []

    def interrupted(closure):
        for call in (coordinator.join, coordinator.done, lambda: coordinator.schedule(_one)):
            try:
                call()
            except ContextError as error:
                refused.append(str(error))
        return schedule(closure)

    monkeypatch.setattr(state, "schedule", interrupted)
    value = coordinator.schedule(_one)
    monkeypatch.undo()
    assert len(refused) == 3
    assert value.fetch() == 1
    coordinator.join()
    assert not dispatcher.stopped


class Interrupt(Exception):
    """What a handler raises."""


# One may arrive in a callback of the garbage collector, which cannot raise.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_random_exceptions_of_handlers(coordinator):
    with coordinator.strategy.scope():
        count = sg.Variable(0.0)
    step = sg.function(lambda: count.assign_add(1.0))
    coordinator.schedule(step)
    coordinator.join()
    scheduled, interrupts, end = 1, 0, time.monotonic() + 2
    with RandomInterrupts(Interrupt) as interrupt:
        while time.monotonic() < end:
            try:
                interrupt.arm(0.01)
                coordinator.schedule(step)
                scheduled += 1
                if scheduled % 10 == 0:
                    coordinator.join()
                interrupt.disarm()
            except Interrupt:
                interrupts += 1
    joined = threading.Thread(target=coordinator.join)
    joined.start()
    joined.join(60)
    assert not joined.is_alive()
    assert scheduled <= float(count.numpy()) <= scheduled + interrupts
    assert interrupts > 5


def test_a_closure_is_queued_or_not_when_an_exception_interrupts(monkeypatch):
    queue, push = closure_queue.ClosureQueue(), closure_queue.heapq.heappush

    def before(heap, item):
        raise Interrupt

    def after(heap, item):
        push(heap, item)
        raise Interrupt

    for length, interrupted in enumerate((before, after)):
        monkeypatch.setattr(closure_queue.heapq, "heappush", interrupted)
        with pytest.raises(Interrupt):
            queue.put(Closure(length))
        assert len(queue) == length
    assert queue.pop(0).number == 1
    assert len(queue) == 0
