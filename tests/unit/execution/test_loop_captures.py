"""Steps of a loop over a dataset see what they capture as it is in each iteration."""

from __future__ import annotations

import array as array_module
import collections
import contextvars
import dataclasses
import functools
import gc
import types
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stratagem as sg

STRATEGIES = {
    "default": sg.distribute.get_strategy,
    "one": lambda: sg.distribute.OneDeviceStrategy("CPU:0"),
    "two": lambda: sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"]),
}
NUM_BATCHES = 4
SLOW = pytest.mark.slow


@pytest.fixture(
    params=["two", pytest.param("default", marks=SLOW), pytest.param("one", marks=SLOW)]
)
def strategy(request):
    return STRATEGIES[request.param]()


@pytest.fixture
def dataset(strategy):
    rows = np.arange(2 * NUM_BATCHES, dtype=np.float32).reshape(-1, 1)
    return strategy.experimental_distribute_dataset(
        sg.data.Dataset.from_tensor_slices(rows).batch(2)
    )


def loop_over(strategy, dataset, steps):
    """Returns a function that runs each of ``steps`` in an iteration, and one that does so eagerly."""

    def epoch():
        out = []
        for x, step in zip(dataset, steps(), strict=False):
            results = strategy.run(step, args=(x,))
            out.append(strategy.reduce("SUM", results, axis=None))
        return out

    def eager_epoch():
        sg.config.run_functions_eagerly(True)
        try:
            return sg.function(epoch)()
        finally:
            sg.config.run_functions_eagerly(False)

    return sg.function(epoch), eager_epoch


def check(strategy, dataset, steps, programs=1):
    epoch, eager = loop_over(strategy, dataset, steps)
    wanted = eager()
    assert len({str(x) for x in wanted}) == NUM_BATCHES
    for _ in range(2):
        got = epoch()
        for a, b in zip(got, wanted, strict=True):
            assert (a.shape, a.dtype) == (b.shape, b.dtype)
            np.testing.assert_allclose(a, b, rtol=1e-6)
    assert epoch.experimental_get_tracing_count() <= programs


# Each is called in every iteration with another number and makes a step of it.


def closure(i):
    return lambda b: jnp.sum(b) + i


def nested_closure(i):
    def inner(b):
        def innermost():
            return i * jnp.sum(b)

        return innermost()

    return lambda b: inner(b) + 1


def default(i):
    def step(b, i=i, *, more=i + 1):
        return jnp.sum(b) + i * more

    return step


def partial(i):
    def step(i, b, more):
        return jnp.sum(b) + i * more

    return functools.partial(functools.partial(step, i), more=2.0 * i)


class Scaled:
    def __init__(self, i):
        self.i = i

    def method(self, b):
        return jnp.sum(b) * self.i

    def __call__(self, b):
        return self.method(b) + self.doubled

    @property
    def doubled(self):
        return 2 * self.i


class Slotted:
    __slots__ = ("__private", "i")

    def __init__(self, i):
        self.i = self.__private = i

    def __call__(self, b):
        return jnp.sum(b) * self.i + self.__private


@dataclasses.dataclass(frozen=True)
class Frozen:
    i: float

    def __call__(self, b):
        return jnp.sum(b) * self.i


def method(i):
    return Scaled(i).method


def callable_object(i):
    return Scaled(i)


class Twice(Scaled):
    def method(self, b):
        return 2 * super().method(b)


def super_method(i):
    return Twice(i).method


def array(i):
    values = np.full((1, 2), i, np.float32)
    return lambda b: jnp.sum(b) + values


def jax_array(i):
    values = jnp.full(3, i)
    return lambda b: jnp.sum(b) + values


def nest(i):
    values = {"a": [i, (jnp.float32(i), np.int32(i))], "b": collections.OrderedDict(c=i + 0.5)}
    return lambda b: jnp.sum(b) + values["a"][0] + values["a"][1][0] * values["b"]["c"]


def object_in_closure(i):
    config = types.SimpleNamespace(rate=i, inner=Scaled(i))
    return lambda b: jnp.sum(b) * config.rate + config.inner.i


def compiled_helper(i):
    helper = sg.function(lambda b: jnp.sum(b) * i)
    return lambda b: helper(b) + 1


def recursive(i):
    def even(n, b):
        return i * jnp.sum(b) if n == 0 else odd(n - 1, b)

    def odd(n, b):
        return even(n - 1, b)

    return lambda b: even(2, b)


KINDS = [
    closure,
    nested_closure,
    default,
    partial,
    method,
    callable_object,
    super_method,
    Slotted,
    Frozen,
    array,
    jax_array,
    nest,
    object_in_closure,
    compiled_helper,
    recursive,
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("number", [float, pytest.param(int, marks=SLOW)])
def test_what_a_step_captures_is_right_in_every_iteration(strategy, dataset, kind, number):
    # Numbers found where they might as well be constants become inputs when they have changed.
    check(strategy, dataset, lambda: [kind(number(i)) for i in range(2, 9)], programs=2)


def test_the_loop_of_a_user_compiles_for_any_number(strategy, dataset):
    @sg.function
    def epoch():
        out, scale = [], 1.0
        for number, x in enumerate(dataset):
            scale = scale + 1.0

            def step(b):
                return jnp.sum(b) * 0 + scale + number  # noqa: B023  (called in this iteration)

            out.append(strategy.reduce("MEAN", strategy.run(step, args=(x,)), axis=None))
        return out

    assert [float(x) for x in epoch()] == [2 + 2 * i for i in range(NUM_BATCHES)]
    # Once for the numbers of the first iteration, and once for any.
    assert epoch.experimental_get_tracing_count() == 2


@pytest.mark.parametrize("kind", [default, partial, method, callable_object, array, jax_array])
def test_steps_made_in_every_iteration_compile_at_most_twice(strategy, dataset, kind):
    # What is computed of a number that changes is known to change when it has.
    check(strategy, dataset, lambda: [kind(float(i)) for i in range(2, 9)], programs=2)


def test_an_attribute_that_the_loop_changes(strategy, dataset):
    scaled = Scaled(1.0)

    def steps():
        for i in range(NUM_BATCHES):
            scaled.i = i + 2.0
            yield scaled

    check(strategy, dataset, steps, programs=2)


def test_a_per_replica_value(strategy, dataset):
    def steps():
        for i in range(2, 9):
            values = strategy.experimental_distribute_values_from_function(
                lambda context, i=i: np.float32(i + context.replica_id_in_sync_group)
            )

            def step(b, values):
                return jnp.sum(b) + sum(strategy.experimental_local_results(values))

            yield functools.partial(step, values=values)

    epoch, _ = loop_over(strategy, dataset, steps)
    count = strategy.num_replicas_in_sync
    of_all = [count * (i + 2) + count * (count - 1) // 2 for i in range(NUM_BATCHES)]
    assert [float(x) for x in epoch()] == [4 * i + 1 + count * v for i, v in enumerate(of_all)]
    assert epoch.experimental_get_tracing_count() == 1


some_number = 1.0
some_array = np.ones(2, np.float32)


def uses_global(b):
    return jnp.sum(b) * some_number + some_array


def helper_of_globals(b):
    return uses_global(b) + 1


@pytest.mark.parametrize("step", [uses_global, helper_of_globals])
def test_globals(strategy, dataset, step):
    def steps():
        global some_number
        for i in range(NUM_BATCHES):
            some_number = i + 2.0
            some_array[:] = i + 3
            yield step

    check(strategy, dataset, steps, programs=2)


def test_numbers_that_python_needs_are_known(strategy, dataset):
    def make(n):
        def step(b):
            total = jnp.zeros((n,)) + jnp.sum(b)
            if n % 2:
                total = -total
            return total[:1] * len(range(n))

        return step

    check(strategy, dataset, lambda: [make(i) for i in range(2, 9)], programs=NUM_BATCHES + 1)


def test_a_number_that_python_needs_next_to_one_that_changes(strategy, dataset):
    def make(n, scale):
        return lambda b: jnp.full((n,), jnp.sum(b)) * scale

    check(strategy, dataset, lambda: [make(3, i + 0.5) for i in range(2, 9)], programs=3)


def test_arrays_that_python_needs_are_known(strategy, dataset):
    def make(i):
        sizes, flag = np.array([i]), jnp.asarray(i > 3)
        return lambda b: jnp.sum(b) * (2 if flag else 3) * float(np.prod(sizes))

    check(strategy, dataset, lambda: [make(i) for i in range(2, 9)], programs=NUM_BATCHES)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.int32, jnp.complex64])
def test_numbers_do_not_change_the_dtype(strategy, dataset, dtype):
    def make(i):
        return lambda b: jnp.sum(b).astype(dtype) * i

    check(strategy, dataset, lambda: [make(i + 0.5) for i in range(2, 9)], programs=3)


def test_numbers_that_do_not_change_are_exact(strategy, dataset):
    decay = 0.999
    scale = np.float32(1 - decay)

    def make(i):
        return lambda b: jnp.sum(b) * 0 + (1 - decay) + i * 0

    epoch, _ = loop_over(strategy, dataset, lambda: [make(i) for i in range(9)])
    assert all(float(x) == scale * strategy.num_replicas_in_sync for x in epoch())


def test_large_numbers_text_and_nothing(strategy, dataset):
    def make(i):
        big, name, nothing = 2**40 + i, f"{i}" * 3, None
        return lambda b: jnp.sum(b) + (big - 2**40) + len(name) + (nothing is None) + int(name[0])

    check(strategy, dataset, lambda: [make(i) for i in range(2, 9)], programs=NUM_BATCHES)


@pytest.mark.parametrize("where", ["list", "dictionary", "attribute", "nonlocal"])
def test_what_the_step_itself_changes_is_no_reason_to_compile_again(strategy, dataset, where):
    notes, counts, noted, count = [], {"n": 0}, Scaled(0), 0

    def make(i):
        def step(b):
            nonlocal count
            if where == "list":
                notes.append("traced")
            elif where == "dictionary":
                counts["n"] += 1
            elif where == "attribute":
                noted.i += 1
            else:
                count += 1
            return jnp.sum(b) * i

        return step

    check(strategy, dataset, lambda: [make(float(i)) for i in range(2, 9)], programs=3)


def test_an_error_of_the_step_is_its_own(strategy, dataset):
    def make(i):
        def step(b):
            raise LookupError(f"{i}")

        return step

    epoch, _ = loop_over(strategy, dataset, lambda: [make(i) for i in range(2, 9)])
    with pytest.raises(LookupError, match="2"):
        epoch()


def test_a_long_loop_keeps_memory_flat():
    strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    batches = sg.data.Dataset.from_tensors(np.ones((2, 1), np.float32)).repeat(300)
    counts = []

    @sg.function
    def epoch():
        for i, x in enumerate(strategy.experimental_distribute_dataset(batches)):
            array = np.float32(i)

            def step(b, scale=float(i), model=Scaled(i)):  # noqa: B008
                return jnp.sum(b) * scale + array + model(b)  # noqa: B023

            total = strategy.reduce("SUM", strategy.run(step, args=(x,)), axis=None)
            if i in (100, 299):
                gc.collect()
                counts.append(len(gc.get_objects()))
        return total

    with jax.log_compiles(False):
        assert float(epoch()) == 2 * (299 + 299 + 299 + 2 * 299)
    assert epoch.experimental_get_tracing_count() <= 2
    assert counts[1] < counts[0] + 100


def test_steps_go_with_what_they_captured():
    strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    batches = sg.data.Dataset.from_tensors(np.ones((2, 1), np.float32)).repeat(6)
    dataset = strategy.experimental_distribute_dataset(batches)
    made = []

    @sg.function
    def epoch():
        totals = []
        for i, x in enumerate(dataset):
            v = sg.Variable(float(i))
            made.append(weakref.ref(v))
            step = lambda b: jnp.sum(b) * v.value()  # noqa: E731, B023
            totals.append(strategy.reduce("SUM", strategy.run(step, args=(x,)), axis=None))
        return totals

    assert [float(x) for x in epoch()] == [0, 2, 4, 6, 8, 10]
    gc.collect()
    assert [reference() for reference in made] == [None] * 6
    assert not epoch._steps._entries


class LazyTrainer:
    """Makes its variable on the first step, and keeps books."""

    def __init__(self):
        self.total = None
        self.rate = 0.5
        self.traces = 0
        self.seen = []
        self.notes = {"begun": False, "old": 1}

    def step(self, x):
        self.traces += 1
        self.seen.append("a step")
        self.notes["begun"] = True
        self.notes.pop("old", None)
        if self.total is None:
            self.total = sg.Variable(0.0, aggregation=sg.VariableAggregation.SUM)
        self.total.assign_add((jnp.sum(x) * 0 + 1) * self.rate)
        return self.total.read_value()


def test_what_a_step_does_to_captured_objects_is_done_to_the_users_own(strategy, dataset):
    trainer = LazyTrainer()

    @sg.function
    def epoch():
        totals = []
        for x in dataset:
            totals.append(strategy.reduce("MEAN", strategy.run(trainer.step, args=(x,)), axis=None))
        return totals

    with strategy.scope():
        first = [float(total) for total in epoch()]
        count = epoch.experimental_get_tracing_count()
        trainer.rate = 1.0
        second = [float(total) for total in epoch()]
    steps = np.arange(1, len(first) + 1) * first[0]
    np.testing.assert_allclose(first, steps)
    np.testing.assert_allclose(second, first[-1] + 2 * steps)
    assert float(trainer.total) == second[-1]
    assert trainer.traces == len(trainer.seen)
    assert trainer.notes == {"begun": True}
    assert epoch.experimental_get_tracing_count() <= count + 1


class Counting:
    """Changes itself in every way that Python has, in the step and outside."""

    factor = 1.0

    def __init__(self):
        self.scale, self.calls, self.seen, self.books = 1.0, 0, [], {"rate": 1.0, "steps": 0}

    def step(self, b):
        self.calls += 1
        self.last = self.scale
        self.seen.append(self.calls)
        self.books["steps"] += 1
        return jnp.sum(b) * self.scale * self.books["rate"] * self.factor


def test_objects_that_step_and_loop_both_change(strategy, dataset):
    def run():
        counting = Counting()
        Counting.factor = 1.0

        @sg.function
        def epoch():
            out = []
            for i, x in enumerate(dataset):
                counting.scale *= 2
                counting.books["rate"] += i
                Counting.factor += 1
                out.append(
                    strategy.reduce("SUM", strategy.run(counting.step, args=(x,)), axis=None)
                )
            return out

        result = [float(value) for value in epoch()] + [float(value) for value in epoch()]
        assert counting.last == counting.scale
        assert counting.seen == list(range(1, counting.calls + 1))
        return result, epoch.experimental_get_tracing_count()

    got, programs = run()
    sg.config.run_functions_eagerly(True)
    try:
        wanted, _ = run()
    finally:
        sg.config.run_functions_eagerly(False)
    np.testing.assert_allclose(got, wanted, rtol=1e-6)
    assert programs <= 2


LIMIT = contextvars.ContextVar("LIMIT", default=0.0)
SETTINGS = types.ModuleType("settings_of_a_user")


def read_module(_):
    return SETTINGS.rate


@pytest.mark.parametrize(
    ("make", "change", "read"),
    [
        (lambda: collections.deque([1.0]), lambda c, i: c.append(i), sum),
        (lambda: {1.0}, lambda c, i: c.add(i + 5.0), sum),
        (lambda: bytearray(b"a"), lambda c, i: c.append(i), sum),
        (lambda: array_module.array("d", [1.0]), lambda c, i: c.append(i), sum),
        (lambda: np.array([1.0, 2.0], object), lambda c, i: c.__setitem__(0, i), lambda c: c[0]),
        (lambda: np.zeros(1000, np.float32), lambda c, i: c.__setitem__(0, i), np.sum),
        (lambda: LIMIT, lambda c, i: c.set(float(i)), lambda c: c.get()),
        (lambda: ValueError(), lambda c, i: setattr(c, "k", i), lambda c: c.k),
        (lambda: closure, lambda c, i: setattr(c, "k", i), lambda c: c.k),
        (lambda: SETTINGS, lambda c, i: setattr(c, "rate", i), read_module),
    ],
)
def test_whatever_a_step_captures_may_change_in_place(strategy, dataset, make, change, read):
    captured = make()

    def steps():
        for i in range(2, 2 + NUM_BATCHES):
            change(captured, i)
            yield lambda b: jnp.sum(b) * 0 + read(captured)

    @sg.function
    def epoch():
        out = []
        for x, step in zip(dataset, steps(), strict=False):
            wanted = float(read(captured))
            results = strategy.run(step, args=(x,))
            out.append((wanted, strategy.reduce("MAX", results, axis=None)))
        return out

    for _ in range(2):
        for wanted, got in epoch():
            assert float(got) == wanted


def test_python_sees_numbers_and_not_what_stands_for_them(strategy, dataset):
    names = {"n1": 1.0, "n2": 4.0, "n3": 9.0, "n4": 16.0}

    @sg.function
    def epoch():
        out, k = [], 0
        for x in dataset:
            k += 1  # noqa: SIM113

            def step(b):
                whole = k if isinstance(k, int) else -1  # noqa: B023
                wide = (k * 2**29 * 8) / 2.0**31  # noqa: B023
                return jnp.sum(b) * 0 + names.get(f"n{k}", -1.0) + whole + wide  # noqa: B023

            out.append(strategy.reduce("MAX", strategy.run(step, args=(x,)), axis=None))
        return out

    assert [float(value) for value in epoch()] == [k * k + k + 2 * k for k in range(1, 5)]
