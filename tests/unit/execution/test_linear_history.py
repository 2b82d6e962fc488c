"""Everything at once on shared variables, in four threads: some order of the calls explains all numbers."""

import graphlib
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
INTERRUPT_SECONDS = 0.05
EPOCH = 1_000_000
"""The distance of the values that are restored, each once: a value tells which restore came before it."""

SUM = {"aggregation": sg.VariableAggregation.SUM}
ON_READ = {"synchronization": sg.VariableSynchronization.ON_READ, **SUM}
ZEROS = np.zeros(4, np.int32)

STRATEGIES = {
    "mirrored2": lambda: sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"]),
    "one_device": lambda: sg.distribute.OneDeviceStrategy("CPU:1"),
    "central2": lambda: sg.distribute.CentralStorageStrategy(["CPU:0", "CPU:1"]),
    "mirrored4": lambda: sg.distribute.MirroredStrategy([f"CPU:{i}" for i in range(4)]),
}


class Failure(Exception):
    pass


class Alarm(Exception):
    """An ordinary exception of a signal handler."""


class Model:
    """Variables of every placement that every call changes alike, by one for each replica."""

    def __init__(self, strategy, directory):
        self.strategy = strategy
        with self.strategy.scope():
            self.variables = [sg.Variable(ZEROS, **o) for o in (SUM, ON_READ)]
            if not isinstance(strategy, sg.distribute.CentralStorageStrategy):
                with sg.distribute.experimental.FullySharded(min_size=2):
                    self.variables.append(sg.Variable(ZEROS, **SUM))
        self.variables.append(sg.Variable(ZEROS))
        self.directory = directory
        self.numbers, self.epochs = itertools.count(), itertools.count(1)
        self.steps = {
            "compiled": sg.function(lambda: (self.strategy.run(self.replica), None)[1]),
            "with a callback": sg.function(self.with_callback),
            "eager": lambda: self.strategy.run(self.replica),
            "returning": sg.function(self.returning),
        }
        self.failures = [self.failing, sg.function(self.failing_callback)]

    def replica(self):
        for v in self.variables:
            v.assign_add(jnp.ones(4, jnp.int32))

    def with_callback(self):
        self.strategy.run(self.replica)
        jax.debug.callback(lambda x: None, self.variables[0].read_value())

    def returning(self):
        self.strategy.run(self.replica)
        return [v.read_value() for v in self.variables]

    def failing(self):
        def replica():
            self.replica()
            raise Failure

        self.strategy.run(replica)

    def failing_callback(self):
        def fail(_):
            raise Failure

        self.strategy.run(self.replica)
        jax.debug.callback(fail, self.variables[0].read_value())

    def fail(self, choose):
        with pytest.raises(Failure):
            choose.choice(self.failures)()

    def read(self):
        values = sg.function(lambda: [v.read_value() for v in self.variables])()
        return self.number(values)

    def number(self, values):
        """Returns the number that all values of one moment are."""
        [number] = {int(n) for value in values for n in np.asarray(value)}
        return number

    def save(self):
        """Saves, and returns what was saved."""
        checkpoint = sg.train.Checkpoint(variables=self.variables)
        path = checkpoint.save(self.directory / f"saved{next(self.numbers)}")
        checkpoint.sync()
        return self.number(self.saved_at(path))

    def saved_at(self, path):
        copies = [sg.Variable(ZEROS) for _ in self.variables]
        sg.train.Checkpoint(variables=copies).restore(path)
        return [copy.numpy() for copy in copies]

    def restore(self):
        """Restores a value that is restored at no other time, and returns it."""
        start = EPOCH * next(self.epochs)
        path = str(self.directory / f"start{start}")
        given = [sg.Variable(ZEROS + start) for _ in self.variables]
        sg.train.Checkpoint(variables=given).write(path)
        sg.train.Checkpoint(variables=self.variables).restore(path)
        return start


def run(model, seconds, *, restores, seed=0):
    """Calls everything in four threads, one of which is interrupted; returns what each has seen."""
    end = time.monotonic() + seconds
    seen, errors = [[] for _ in range(4)], []
    kinds = [*model.steps, *model.steps, "fail", "read", "save", *["restore"][: int(restores)]]

    def work(number):
        choose = random.Random(f"{seed} {number} {len(seen[number])}")
        while time.monotonic() < end and not errors:
            kind, value = choose.choice(kinds), None
            if kind in model.steps:
                result = model.steps[kind]()
                value = model.number(result) if kind == "returning" else None
            elif kind == "fail":
                model.fail(choose)
            else:
                value = getattr(model, kind)()
            seen[number].append((kind, value))

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
    return seen


def interrupted_work(work, end):
    """Works in the main thread, where interrupts come at random moments that are then passed over."""
    armed, kinds = False, itertools.cycle([KeyboardInterrupt, Alarm])

    def interrupt(*_):
        nonlocal armed
        if armed:
            armed = False
            raise next(kinds)

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, INTERRUPT_SECONDS, INTERRUPT_SECONDS)
    try:
        while time.monotonic() < end:
            try:
                armed = True
                work()
                armed = False
            except (KeyboardInterrupt, Alarm):
                pass
            except TypeError as error:
                # JAX filters tracebacks, and raises this for an interrupt at a line without number.
                if not isinstance(error.__context__, (KeyboardInterrupt, Alarm)):
                    raise
    finally:
        armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def check_history(seen):
    """Checks that some order of all calls explains what the threads have seen."""
    returned = [value for events in seen for kind, value in events if kind == "returning"]
    assert len(set(returned)) == len(returned), "two steps made the same value"
    follows = {}
    for events in seen:
        values = [value for _, value in events if value is not None]
        epochs = [epoch for epoch, _ in itertools.groupby(value // EPOCH for value in values)]
        assert len(set(epochs)) == len(epochs), f"a restored value came back: {epochs}"
        for earlier, later in itertools.pairwise(epochs):
            follows.setdefault(later, set()).add(earlier)
        for _, group in itertools.groupby(values, lambda value: value // EPOCH):
            group = list(group)
            assert group == sorted(group), "a thread saw an update, and then not"
    graphlib.TopologicalSorter(follows).prepare()  # raises if threads disagree about the order


@pytest.fixture
def model(request, tmp_path):
    made = Model(STRATEGIES[request.param](), tmp_path)
    for step in made.steps.values():
        step(), step()
    for failure in made.failures:
        with pytest.raises(Failure):
            failure()
    made.read(), made.save()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-3)
    yield made
    sys.setswitchinterval(interval)


def check_run(model, seconds, *, restores, seed=0):
    before, replicas = model.read(), model.strategy.num_replicas_in_sync
    seen = run(model, seconds, restores=restores, seed=seed)
    check_history(seen)
    made, value = sum(kind in model.steps for events in seen for kind, _ in events), model.read()
    # A step that was interrupted has run or has not; each interrupt leaves at most one in doubt.
    most = replicas * (made + 2 * seconds / INTERRUPT_SECONDS)
    if restores:
        assert value % EPOCH <= most
    else:
        assert before + replicas * made <= value <= before + most
    for step in model.steps.values():
        step()
    assert model.read() == value + 4 * replicas


SECONDS = [3, pytest.param(60, marks=pytest.mark.slow)]


@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.usefixtures("forgotten_starts")
@pytest.mark.parametrize("seconds", SECONDS)
@pytest.mark.parametrize("restores", [False, True])
@pytest.mark.parametrize(
    "model",
    ["mirrored2", *(pytest.param(name, marks=pytest.mark.slow) for name in list(STRATEGIES)[1:])],
    indirect=True,
)
def test_calls_of_four_threads_have_a_linear_history(model, seconds, restores):
    check_run(model, seconds, restores=restores)


@pytest.mark.parametrize(
    ("seen", "error"),
    [
        ([[("returning", 2)], [("returning", 2)]], "same value"),
        ([[("read", 4), ("read", 2)]], "and then not"),
        ([[("read", EPOCH), ("read", 2), ("read", EPOCH + 2)]], "came back"),
    ],
)
def test_histories_that_no_order_explains(seen, error):
    with pytest.raises(AssertionError, match=error):
        check_history(seen)


def test_threads_that_disagree_about_the_order_of_restores():
    one = [("restore", EPOCH), ("read", 2 * EPOCH)]
    other = [("restore", 2 * EPOCH), ("read", EPOCH)]
    with pytest.raises(graphlib.CycleError):
        check_history([one, other])
