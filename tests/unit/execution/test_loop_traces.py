"""A step in a loop over a dataset is traced in every iteration, and compiled if it computes what is new."""

from __future__ import annotations

import importlib
import operator
import os
import sys
import threading
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stratagem as sg

RATES = [1.0, 0.5, 0.25, 0.125]
settings = types.ModuleType("settings_of_this_test")
rate = None
local = threading.local()
table = dict.fromkeys(RATES)


@pytest.fixture
def strategy():
    return sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


@pytest.fixture
def dataset(strategy):
    rows = sg.data.Dataset.from_tensor_slices(np.ones((8, 1), np.float32))
    return strategy.experimental_distribute_dataset(rows.batch(2))


def run_loop(strategy, dataset, step, change=lambda i: None):
    """Returns what the step gives in each iteration, after ``change``, and how many programs there are."""

    @sg.function
    def epoch():
        out = []
        for i, x in enumerate(dataset):
            change(i)
            out.append(strategy.experimental_local_results(strategy.run(step, args=(x,)))[0])
        return out

    return epoch(), epoch.experimental_get_tracing_count()


def set_everywhere(i):
    global rate
    rate = settings.rate = local.rate = RATES[i]
    os.environ["STRATAGEM_TEST_RATE"] = str(RATES[i])


def imported():
    import settings_of_this_test as module

    return module.rate


def imported_from():
    from settings_of_this_test import rate

    return rate


class Reader:
    get = None

    def read(self):
        return self.get(vars(settings))


reader = Reader()

READS = {
    "import": imported,
    "from import": imported_from,
    "getattr": lambda: getattr(settings, "rate"),  # noqa: B009
    "vars": lambda: vars(settings)["rate"],
    "globals": lambda: globals()["rate"],
    "thread local": lambda: local.rate,
    "environment": lambda: float(os.environ["STRATAGEM_TEST_RATE"]),
    "itemgetter": reader.read,
    "eval": lambda: eval("rate"),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_wherever_a_step_looks_it_sees_the_present(strategy, dataset, read, monkeypatch):
    monkeypatch.setitem(sys.modules, "settings_of_this_test", settings)
    monkeypatch.setenv("STRATAGEM_TEST_RATE", "")
    monkeypatch.setattr(reader, "get", operator.itemgetter("rate"))
    got, programs = run_loop(strategy, dataset, lambda x: jnp.sum(x) * read(), set_everywhere)
    assert [float(x) for x in got] == RATES
    assert programs == 2


def test_another_getter_in_an_attribute(strategy, dataset):
    values = dict(zip("abcd", RATES, strict=True))

    def change(i):
        reader.get = operator.itemgetter("abcd"[i])

    got, _ = run_loop(strategy, dataset, lambda x: jnp.sum(x) * reader.get(values), change)
    assert [float(x) for x in got] == RATES


def test_a_step_of_an_installed_package(strategy, dataset, tmp_path, monkeypatch):
    directory = tmp_path / "site-packages"
    directory.mkdir()
    (directory / "installed_step_of_this_test.py").write_text(
        "import jax.numpy as jnp\nrate = None\ndef step(x):\n    return jnp.sum(x) * rate\n"
    )
    monkeypatch.syspath_prepend(str(directory))
    module = importlib.import_module("installed_step_of_this_test")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    got, _ = run_loop(strategy, dataset, module.step, lambda i: setattr(module, "rate", RATES[i]))
    assert [float(x) for x in got] == RATES


def test_a_step_that_does_not_change_compiles_once(strategy, dataset):
    with strategy.scope():
        w = sg.Variable(jnp.ones((1, 3)), aggregation=sg.VariableAggregation.MEAN)
    traces = []

    @jax.custom_vjp
    def doubled(x):
        return 2 * x

    doubled.defvjp(lambda x: (2 * x, None), lambda _, g: (2 * g,))

    def step(x):
        traces.append(1)

        def loss():
            h = jax.nn.relu(x @ w) + jax.nn.softmax(doubled(x @ w)) + jnp.array([1.0, 2.0, 3.0])
            return jax.lax.scan(lambda c, row: (c + row.sum() * 3.0, None), 0.0, h)[0]

        value, (gradient,) = sg.value_and_grad(loss, [w])()
        w.assign_sub(0.01 * gradient)
        return value + jax.nn.gelu(doubled(x)).sum()

    got, programs = run_loop(strategy, dataset, step)
    assert programs == 1
    assert len(traces) == len(got)
    assert len({float(x) for x in got}) == len(got)


def test_callbacks_are_those_of_the_iteration(strategy, dataset):
    seen, number = [], 0

    def change(i):
        nonlocal number
        number = i

    def step(x):
        mine = number
        jax.debug.callback(lambda total: seen.append((mine, float(total))), jnp.sum(x))
        shape = jax.ShapeDtypeStruct((), np.float32)
        return jax.pure_callback(lambda t: np.float32(t + mine), shape, jnp.sum(x))

    got, programs = run_loop(strategy, dataset, step, change)
    assert [float(x) for x in got] == [1, 2, 3, 4]
    assert sorted(seen) == [(i, 1.0) for i in range(4) for _ in range(2)]
    assert programs == 1


def test_an_error_of_a_callback_is_raised_in_its_iteration(strategy, dataset):
    number = 0

    def change(i):
        nonlocal number
        number = i

    def step(x):
        mine = number

        def check(_):
            if mine == 2:
                raise LookupError("the third")

        jax.debug.callback(check, jnp.sum(x))
        return jnp.sum(x)

    with pytest.raises(LookupError, match="the third"):
        run_loop(strategy, dataset, step, change)
    assert number == 2


def test_what_is_returned_and_no_array_is_of_the_iteration(strategy, dataset):
    number = 0

    def change(i):
        nonlocal number
        number = i

    def step(x):
        return {"total": jnp.sum(x), "text": f"iteration {number}", "none": None}

    got, programs = run_loop(strategy, dataset, step, change)
    assert [x["text"] for x in got] == [f"iteration {i}" for i in range(4)]
    assert programs == 1


def test_steps_that_alternate_have_a_program_each(strategy, dataset):
    steps = [lambda x: jnp.sum(x), lambda x: jnp.max(x) + 2]
    number = 0

    def change(i):
        nonlocal number
        number = i % 2

    got, programs = run_loop(strategy, dataset, lambda x: steps[number](x), change)
    assert [float(x) for x in got] == [1, 3, 1, 3]
    assert programs == 2


def test_a_compiled_step_is_traced_once(strategy, dataset):
    traces = []

    @sg.function
    def step(x):
        traces.append(1)
        return jnp.sum(x)

    got, _ = run_loop(strategy, dataset, step)
    assert len(got) == 4
    assert len(traces) == 1


def test_an_array_that_is_changed_in_place(strategy, dataset):
    scale = np.zeros((), np.float32)
    in_jit = np.zeros(3, np.float32)

    def change(i):
        scale[...] = i
        in_jit[:] = i

    def step(x):
        return jnp.sum(x) * scale + jax.lax.map(lambda row: row + in_jit, x).sum()

    got, _ = run_loop(strategy, dataset, step, change)
    assert [float(x) for x in got] == [3 + 4 * i for i in range(4)]


def test_a_loop_that_traces_more_than_it_computes_is_told_so_once(strategy, caplog):
    rows = sg.data.Dataset.from_tensor_slices(np.ones((120, 1), np.float32)).batch(2)
    dataset = strategy.experimental_distribute_dataset(rows)

    def step(x):
        for _ in range(40):
            x = jnp.sin(x) * 2
        return jnp.sum(x)

    def epoch(of, dataset):
        for x in dataset:
            strategy.run(of, args=(x,))

    compiled = sg.function(step)
    sg.function(lambda dataset: epoch(compiled, dataset))(dataset)
    assert not caplog.messages
    traced = sg.function(lambda dataset: epoch(step, dataset))
    traced(dataset)
    traced(dataset)
    [message] = [text for text in caplog.messages if "in every iteration" in text]
    assert "step" in message
    assert "Make it an sg.function" in message


def test_the_python_code_of_a_step_runs_once_in_each_iteration(strategy, dataset):
    count = 0

    def step(x):
        nonlocal count
        count += 1
        return jnp.sum(x) * count

    got, programs = run_loop(strategy, dataset, step)
    assert [float(x) for x in got] == [1, 2, 3, 4]
    assert programs == 2


@pytest.mark.parametrize("error", [None, RuntimeError("no")])
def test_a_loop_in_which_the_function_catches_errors(strategy, dataset, error):
    @sg.function
    def epoch():
        total = 0.0
        try:
            for x in dataset:
                total += strategy.reduce("SUM", strategy.run(jnp.sum, args=(x,)), axis=None)
        except Exception:
            if error is not None:
                raise error from None
            return -1.0
        return total

    assert [float(epoch()) for _ in range(2)] == [8, 8]
