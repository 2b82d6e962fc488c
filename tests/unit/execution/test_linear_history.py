"""Everything at once on shared variables, in four threads: at the end the counts are right."""

import itertools
import random
import signal
import sys
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stratagem as sg

PATIENCE = 120
SUM = {"aggregation": sg.VariableAggregation.SUM}
ON_READ = {"synchronization": sg.VariableSynchronization.ON_READ, **SUM}


class Failure(Exception):
    pass


class Model:
    """Variables of every placement that every call changes alike, by one for each of two replicas."""

    def __init__(self, directory):
        self.strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        with self.strategy.scope():
            self.variables = [sg.Variable(np.zeros(4, np.float32), **o) for o in (SUM, ON_READ)]
            with sg.distribute.experimental.FullySharded(min_size=2):
                self.variables.append(sg.Variable(np.zeros(4, np.float32), **SUM))
        self.variables.append(sg.Variable(np.zeros(4, np.float32)))
        self.directory = directory
        self.numbers = itertools.count()
        self.steps = {
            "compiled": sg.function(lambda: (self.strategy.run(self.replica), None)[1]),
            "with a callback": sg.function(self.with_callback),
            "eager": lambda: self.strategy.run(self.replica),
            "returning": sg.function(self.returning),
        }

    def replica(self):
        for v in self.variables:
            v.assign_add(jnp.ones(4))

    def with_callback(self):
        self.strategy.run(self.replica)
        jax.debug.callback(lambda x: None, self.variables[0].read_value())

    def returning(self):
        self.strategy.run(self.replica)
        return self.variables[0].read_value(), self.variables[3].read_value()

    def failing(self):
        def replica():
            self.replica()
            raise Failure

        with pytest.raises(Failure):
            self.strategy.run(replica)

    def read(self):
        values = sg.function(lambda: [v.read_value() for v in self.variables])()
        return [float(value[0]) for value in values]

    def check_read(self):
        assert len(set(self.read())) == 1

    def save_and_check(self):
        checkpoint = sg.train.Checkpoint(variables=self.variables)
        path = checkpoint.save(self.directory / f"saved{next(self.numbers)}")
        checkpoint.sync()
        copies = [sg.Variable(np.zeros(4, np.float32)) for _ in self.variables]
        sg.train.Checkpoint(variables=copies).restore(path)
        assert len({float(copy.numpy()[0]) for copy in copies}) == 1

    def restore(self, path, restored):
        sg.train.Checkpoint(variables=self.variables).restore(path)
        restored.append(True)


def run(model, seconds, *, restores):
    """Calls everything in four threads, one of which is interrupted, and returns how many steps ran."""
    end = time.monotonic() + seconds
    counts, errors, restored = [0] * 4, [], []
    path = sg.train.Checkpoint(variables=model.variables).write(str(model.directory / "first"))

    def work(number):
        choose = random.Random(number)
        while time.monotonic() < end and not errors:
            kind = choose.choice([*model.steps, *model.steps, "fail", "read", "save", "restore"])
            if kind in model.steps:
                result = model.steps[kind]()
                counts[number] += 1
                if result is not None and kind == "returning":
                    first, second = result
                    assert float(first[0]) == float(second[0])
            elif kind == "fail":
                model.failing()
            elif kind == "read":
                model.check_read()
            elif kind == "save":
                model.save_and_check()
            elif restores:
                model.restore(path, restored)

    def guarded(number):
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(n,)) for n in range(1, 4)]
    for thread in threads:
        thread.start()
    interrupted_work(lambda: work(0), end)
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    if errors:
        raise errors[0]
    return sum(counts)


def interrupted_work(work, end):
    """Works in the main thread, where interrupts come at random moments that are then passed over."""
    armed = False

    def interrupt(*_):
        nonlocal armed
        if armed:
            armed = False
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
    try:
        while time.monotonic() < end:
            try:
                armed = True
                work()
                armed = False
            except KeyboardInterrupt:
                pass
    finally:
        armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture
def model(tmp_path):
    made = Model(tmp_path)
    for step in made.steps.values():
        step(), step()
    made.failing(), made.check_read(), made.save_and_check()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-3)
    yield made
    sys.setswitchinterval(interval)


@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("seconds", "restores"),
    [
        (3, False),
        pytest.param(60, False, marks=pytest.mark.slow),
        pytest.param(60, True, marks=pytest.mark.slow),
    ],
)
def test_calls_of_four_threads_have_a_linear_history(model, seconds, restores):
    before = model.read()[0]
    steps = run(model, seconds, restores=restores)
    values = model.read()
    assert len(set(values)) == 1
    if not restores:
        # A step that was interrupted has run or has not; each interrupt leaves at most one in doubt.
        in_doubt = 2 * seconds / 0.05
        assert before + 2 * steps <= values[0] <= before + 2 * steps + in_doubt
    made_after = [step() for step in model.steps.values()]
    assert len(made_after) == 4
    assert model.read() == [values[0] + 8] * len(values)
