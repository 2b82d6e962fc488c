"""Signal handlers that save while they interrupt something else than a step."""

import subprocess
import sys

import numpy as np
import pytest

import stratagem as sg
from handlers import for_a_while, on_signal, signals
from stratagem._src.core.errors import ContextError
from stratagem._src.data import iterator as iterators
from stratagem._src.process.background import Background

FIRST_SAVE = """
import os, signal, sys, threading
import stratagem as sg

outer, inner = (sg.train.Checkpoint(v=sg.Variable(float(k))) for k in range(2))
begun, paths = threading.Event(), []

def save(*_):
    begun.set()
    paths.append(inner.save(sys.argv[1] + "/inner"))

class SendsASignal:
    def find_spec(self, name, *_):
        if name == "tensorstore._tensorstore" and not begun.is_set():
            os.kill(os.getpid(), signal.SIGUSR1)
            assert begun.wait(60)

signal.signal(signal.SIGUSR1, save)
sys.meta_path.insert(0, SendsASignal())
paths.append(outer.save(sys.argv[1] + "/outer"))
for checkpoint, path in zip((inner, outer), paths, strict=True):
    checkpoint.sync()
    checkpoint.restore(path)
print(*map(os.path.basename, paths))
"""


def test_a_handler_that_interrupts_the_first_save_of_a_process(tmp_path):
    command = [sys.executable, "-c", FIRST_SAVE, str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (result.returncode, result.stdout) == (0, "inner-1 outer-1\n"), result.stderr


def test_a_handler_that_interrupts_a_save_before_its_thread_starts(tmp_path, monkeypatch):
    outer, inner = (sg.train.Checkpoint(v=sg.Variable(float(k))) for k in range(2))
    start_thread, paths = Background.start, []

    def interrupted(background, *args, **kwargs):
        if not paths:
            paths.append(None)
            paths.append(inner.save(tmp_path / "inner"))
        return start_thread(background, *args, **kwargs)

    monkeypatch.setattr(Background, "start", interrupted)
    path = outer.save(tmp_path / "outer")
    paths[0] = path
    for checkpoint, path in zip((outer, inner), paths, strict=True):
        checkpoint.sync()
        checkpoint.restore(path).assert_consumed()


def pipelines(ask):
    """Datasets of the batches [0, 1], [2, 3], ...; ``ask(x)`` is called where elements are made."""

    def generate():
        for number in range(1000):
            ask(number)
            yield np.int64(number)

    spec = sg.TensorSpec([], np.int64)
    dataset = sg.data.Dataset.from_generator(generate, output_signature=spec)
    return {
        "batch": dataset.batch(2),
        "prefetch": dataset.prefetch(3).batch(2),
        "prefetch last": dataset.batch(2).prefetch(1),
        "parallel": dataset.map(lambda x: x + 0, num_parallel_calls=2).batch(2),
    }


def start(dataset, is_distributed):
    if not is_distributed:
        return iter(dataset)
    strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    return iter(strategy.experimental_distribute_dataset(dataset))


def first_of(element):
    if isinstance(element, sg.distribute.DistributedValues):
        element = element.values[0]
    return int(np.asarray(element).ravel()[0])


@pytest.mark.parametrize("is_distributed", [False, True])
@pytest.mark.parametrize("kind", ["batch", "prefetch", "prefetch last", "parallel"])
def test_a_handler_that_interrupts_next(kind, is_distributed, tmp_path):
    given, saved = [], []

    def handler():
        saved.append((len(given), checkpoint.save(tmp_path / "saved")))

    with on_signal(handler) as send:
        # In the middle of a batch that the main thread draws, or waits for.
        datasets = pipelines(lambda number: send() if number == 2 * 41 + 1 else None)
        iterator = start(datasets[kind], is_distributed)
        checkpoint = sg.train.Checkpoint(iterator=iterator)
        while len(given) < 60:
            given.append(first_of(next(iterator)))
    checkpoint.sync()
    assert given == list(range(0, 120, 2))
    ((num_given, path),) = saved
    again = start(pipelines(lambda number: None)[kind], is_distributed)
    sg.train.Checkpoint(iterator=again).restore(path)
    # next() may have returned, and what it returned not been appended.
    assert first_of(next(again)) in {2 * num_given, 2 * num_given + 2}


@pytest.mark.parametrize("seconds_between_places", [1.0, 0.0])
def test_the_state_of_an_iterator_that_draws(seconds_between_places, monkeypatch):
    monkeypatch.setattr(iterators, "_POSITION_INTERVAL_SECONDS", seconds_between_places)
    states = []

    def ask(number):
        if number == 2 * 41 + 1:
            states.append(iterator.get_state())
            for call in (lambda: next(iterator), lambda: iterator.set_state(states[0])):
                with pytest.raises(ContextError, match="Set a flag in the handler"):
                    call()

    iterator = iter(pipelines(ask)["batch"])
    for _ in range(42):
        next(iterator)
    assert states[0]["skip"] == (41 if seconds_between_places else 41 % 16)
    again = iter(pipelines(lambda number: None)["batch"])
    again.set_state(states[0])
    assert [first_of(next(again)) for _ in range(2)] == [82, 84]
    again.set_state(again.get_state())
    assert first_of(next(again)) == 86


def test_the_state_of_an_iterator_that_draws_after_a_failure():
    asked, states = [], []

    def ask(number):
        asked.append(int(number))
        if len(asked) == 2:
            raise OSError("not now")
        if len(asked) > 2:
            states.append(iterator.get_state())
        return number

    iterator = iter(sg.data.Dataset.range(9).map(ask))
    next(iterator)
    with pytest.raises(OSError, match="not now"):
        next(iterator)
    given = [int(next(iterator)) for _ in range(2)]
    for state, element in zip(states[:2], given, strict=True):
        iterator.set_state(state)
        assert int(next(iterator)) == element


def test_a_handler_that_interrupts_a_restore(tmp_path):
    variables = [sg.Variable(np.zeros(100, np.float32)) for _ in range(5)]
    checkpoint, inner = (sg.train.Checkpoint(variables=variables) for _ in range(2))
    paths, saved, refused = [], [], []
    for value in (1.0, 2.0):
        for variable in variables:
            variable.assign(np.full(100, value))
        paths.append(checkpoint.save(tmp_path / "outer"))

    def handler():
        try:
            saved.append(inner.save(tmp_path / "inner"))
            inner.restore(saved[-1])
        except ContextError as error:
            refused.append(str(error))

    with signals(handler, 0.01):
        for_a_while(lambda: [checkpoint.restore(path) for path in paths])
    inner.sync()
    assert len(saved) + len(refused) > 5
    assert all("Set a flag in the handler" in text for text in refused)
    for path in saved[-20:]:
        inner.restore(path)
        assert {float(v.numpy()[0]) for v in variables} in ({1.0}, {2.0})


def test_a_save_between_two_changes_of_a_restore_is_refused(tmp_path):
    class Loop:
        """Something with a state, which is restored after the variable."""

        def get_state(self):
            return 0

        def set_state(self, state):
            for call in (checkpoint.save, checkpoint.restore):
                with pytest.raises(ContextError, match="while it interrupts Checkpoint"):
                    call(path)
            calls.append(state)

    calls = []
    checkpoint = sg.train.Checkpoint(variable=sg.Variable(0.0), loop=Loop())
    path = checkpoint.save(tmp_path / "saved")
    checkpoint.restore(path)
    assert calls == [0]
    checkpoint.save(tmp_path / "saved")


def test_a_restore_in_a_handler_works_or_says_why_not(tmp_path):
    variable = sg.Variable(0.0)
    checkpoint = sg.train.Checkpoint(variable=variable)
    path = checkpoint.save(tmp_path / "saved")
    outcomes = []

    def handler():
        try:
            sg.train.Checkpoint(variable=variable).restore(path)
            outcomes.append("")
        except ContextError as error:
            outcomes.append(str(error))

    with signals(handler, 0.005):
        for_a_while(lambda: variable.assign_add(1.0))
        for_a_while(lambda: checkpoint.restore(path))
    assert "" in outcomes
    assert all("Set a flag in the handler" in text for text in outcomes if text)
    checkpoint.restore(path)
    assert float(variable.numpy()) == 0.0
