"""Signal handlers that interrupt the coordinator's calls."""

import numpy as np

import stratagem as sg
from handlers import for_a_while, signals
from stratagem._src.core.errors import ContextError


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
