"""A step in a loop over ``tf.range`` sees every Python value as it is in the iteration."""

from __future__ import annotations

import functools
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stratagem as tf

NUM = 6
rate = 0.0


class Settings:
    rate = 0.0
    traces = 0


settings = Settings()


@pytest.fixture(params=[1, pytest.param(2, marks=pytest.mark.slow)])
def strategy(request):
    return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(request.param)])


def test_a_step_that_is_a_function_is_traced_once(strategy):
    counter = Settings()
    with strategy.scope():
        total = tf.Variable(0.0, aggregation=tf.VariableAggregation.MEAN)

    @tf.function
    def step(x):
        counter.traces += 1
        total.assign_add(jnp.sum(x))

    @tf.function
    def steps(count):
        for i in tf.range(count):
            strategy.run(step, args=(tf.cast(i, tf.float32),))

    steps(tf.constant(4))
    counter.traces = 0
    steps(tf.constant(60))
    assert counter.traces == 0
    assert float(total) == 6 + 59 * 30


@pytest.mark.slow
def test_random_numbers_differ_in_each_iteration(strategy):
    @tf.function
    def steps(count):
        results = [0.0]
        for _ in tf.range(count):
            results.append(strategy.run(lambda: tf.random.uniform([])))
        return [strategy.reduce("MEAN", x, axis=None) for x in results[1:]]

    assert len({float(x) for x in steps(tf.constant(8))}) == 8


def set_global(i):
    global rate
    rate = float(i)


def set_attribute(i):
    settings.rate = float(i)


def in_loop(strategy, make):
    """Returns what steps give whose factory is called with the number of each iteration."""

    @tf.function
    def steps(count):
        out = []
        for i in tf.range(count):
            results = strategy.run(make(int(i)))
            out.append(strategy.experimental_local_results(results)[0])
        return out

    return [float(x) for x in steps(tf.constant(NUM))]


@pytest.mark.parametrize(
    "make",
    [
        lambda i: lambda: jnp.ones(()) * i,
        lambda i: lambda x=i: jnp.ones(()) * x,
        lambda i: functools.partial(lambda x: jnp.ones(()) * x, i),
        lambda i: lambda: jnp.ones(()) * jnp.float32(i),
        lambda i: (lambda array: lambda: jnp.ones(()) * array)(jnp.float32(i)),
        lambda i: (lambda array: lambda: jnp.ones(()) * array)(np.float32(i) * np.ones(())),
        lambda i: (lambda inner: lambda: inner())(lambda: jnp.ones(()) * i),
        lambda i: (lambda values: lambda: jnp.ones(()) * values[0]["i"])([{"i": i}]),
        lambda i: (set_global(i), lambda: jnp.ones(()) * rate)[1],
        lambda i: (set_attribute(i), lambda: jnp.ones(()) * settings.rate)[1],
        lambda i: (
            lambda: jax.pure_callback(lambda: np.float32(i), jax.ShapeDtypeStruct((), np.float32))
        ),
    ],
)
def test_a_step_sees_what_it_captures_in_each_iteration(strategy, make):
    assert in_loop(strategy, make) == list(range(NUM))


def test_what_the_body_assigns_late_is_seen(strategy):
    holder, table = Settings(), Settings()
    table.rates = {}

    def step():
        return jnp.ones(()) * (holder.rate + table.rates.get("rate", 0.0))

    @tf.function
    def attribute(count):
        out = []
        for i in tf.range(count):
            if i == 3:
                holder.rate = 1.0
            out.append(strategy.reduce("MEAN", strategy.run(step), axis=None))
        return out

    @tf.function
    def item(count):
        out = []
        for i in tf.range(count):
            out.append(strategy.reduce("MEAN", strategy.run(step), axis=None))
            try:
                if i == 2:
                    raise KeyError
            except KeyError:
                table.rates["rate"] = 1.0
        return out

    assert [float(x) for x in attribute(tf.constant(NUM))] == [0, 0, 0, 1, 1, 1]
    assert [float(x) for x in item(tf.constant(NUM))] == [1, 1, 1, 2, 2, 2]


def test_an_array_that_the_body_changes_in_place(strategy):
    def steps(count):
        scale, out = np.zeros(1), []

        def step():
            return jnp.sum(jnp.ones(1) * scale)

        for _ in tf.range(count):
            scale += 1
            out.append(strategy.reduce("MEAN", strategy.run(step), axis=None))
        return out

    results = tf.function(steps)(tf.constant(NUM))
    assert [float(x) for x in results] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("end", [None, 4])
@pytest.mark.parametrize("rates", [[1, 1, 0.5, 1, 1], [1, 1, 0.5, 0.25, 0.125], [0.5, 1, 1, 1, 1]])
def test_what_changes_out_of_sight(strategy, rates, end):
    local = threading.local()

    def step():
        return jnp.ones(()) * local.rate

    def change(i):
        local.rate = rates[int(i)]

    @tf.function
    def steps(count):
        out = []
        for i in tf.range(count):
            change(i)
            out.append(strategy.reduce("MEAN", strategy.run(step), axis=None))
            if len(out) == end:
                break
        return out

    assert [float(x) for x in steps(tf.constant(len(rates)))] == rates[:end]


def test_what_the_step_itself_changes(strategy):
    counter = Settings()

    def step():
        counter.traces += 1
        return jnp.ones(()) * counter.traces

    @tf.function
    def steps(count):
        values = [0.0]
        for _ in tf.range(count):
            values.append(strategy.reduce("MEAN", strategy.run(step), axis=None))
        return values[1:]

    values = [float(x) for x in steps(tf.constant(NUM))]
    assert values == list(np.arange(NUM) + values[0])


def test_a_loop_over_a_dataset_in_a_loop_over_epochs(strategy):
    rows = tf.data.Dataset.from_tensor_slices(np.ones(4, np.float32)).batch(2)
    batches = strategy.experimental_distribute_dataset(rows)
    rates = [1.0, 1.0, 0.5, 0.25, 1.0]

    def change(epoch):
        settings.rate = rates[int(epoch)]

    def step(x):
        return jnp.sum(x) * settings.rate

    @tf.function
    def train(count):
        out = []
        for epoch in tf.range(count):
            change(epoch)
            for x in batches:
                out.append(strategy.reduce("SUM", strategy.run(step, args=(x,)), axis=None))
        return out

    sums = [float(x) / 2 for x in train(tf.constant(len(rates)))]
    assert sums == [rate for rate in rates for _ in range(2)]


def test_steps_in_turn_and_loops_in_loops(strategy):
    def step(factor):
        return jnp.ones(()) * factor

    @tf.function
    def steps(count):
        out = []
        for _ in tf.range(count):
            for factor in (1.0, 2.0):
                for _ in tf.range(3):
                    out.append(strategy.run(functools.partial(step, factor)))
            out.append(strategy.run(functools.partial(step, 3.0)))
        return [strategy.reduce("MEAN", x, axis=None) for x in out]

    results = [float(x) for x in steps(tf.constant(4))]
    assert results == [1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 3.0] * 4


def test_a_variable_of_the_function_that_changes_late(strategy):
    @tf.function
    def steps(count):
        rate, out = 0.0, []

        def step():
            return jnp.ones(()) * rate

        for i in tf.range(count):
            if i == 3:
                rate = 1.0
            out.append(strategy.reduce("MEAN", strategy.run(step), axis=None))
        return out

    assert [float(x) for x in steps(tf.constant(NUM))] == [0, 0, 0, 1, 1, 1]


def test_one_step_that_is_called_at_one_place_several_times_in_an_iteration(strategy):
    def step():
        return jnp.ones(()) * rate

    @tf.function
    def steps(count):
        out = []
        for _ in tf.range(count):
            for number in range(2):
                set_global(number)
                out.append(strategy.reduce("MEAN", strategy.run(step), axis=None))
        return out

    assert [float(x) for x in steps(tf.constant(8))] == [0, 1] * 8


def test_a_generator_that_loops_for_others(strategy):
    def numbers(count):
        for i in tf.range(count):
            yield i + 0

    @tf.function
    def steps(count):
        out = []
        for i in numbers(count):
            settings.rate = float(i >= 3)
            results = strategy.run(lambda: jnp.ones(()) * settings.rate)
            out.append(strategy.reduce("MEAN", results, axis=None))
        return out

    assert [float(x) for x in steps(tf.constant(NUM))] == [0, 0, 0, 1, 1, 1]


def test_a_loop_that_ends_early_leaves_no_loop_behind(strategy):
    holder = Settings()

    @tf.function
    def steps(count):
        for i in tf.range(count):
            strategy.run(lambda: jnp.ones(()))
            if i == 3:
                break
        out = []
        for k in range(4):
            holder.rate = float(k >= 2)
            out.append(strategy.run(lambda: jnp.ones(()) * holder.rate))
        return [strategy.reduce("MEAN", x, axis=None) for x in out]

    assert [float(x) for x in steps(tf.constant(NUM))] == [0, 0, 1, 1]
