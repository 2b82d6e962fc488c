"""Steps in a loop over ``tf.range`` are traced until two traces agree, and never compute what is stale."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stratagem as tf
from stratagem._src.execution.dataset_loops.captured_key import captured_key

NUM = 6
rate = 0.0


class Settings:
    rate = 0.0
    traces = 0


settings = Settings()


@pytest.fixture(params=[1, pytest.param(2, marks=pytest.mark.slow)])
def strategy(request):
    return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(request.param)])


def test_a_step_is_traced_three_times_in_a_loop_of_any_length(strategy):
    counter = Settings()
    with strategy.scope():
        total = tf.Variable(0.0, aggregation=tf.VariableAggregation.MEAN)

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
    assert counter.traces == 3
    assert float(total) == 6 + 59 * 30
    assert steps.experimental_get_tracing_count() == 1


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


def test_what_changes_out_of_sight_fails_the_loop(strategy):
    holder = Settings()
    with strategy.scope():
        total = tf.Variable(0.0, aggregation=tf.VariableAggregation.MEAN)

    def step():
        total.assign_add(jnp.ones(()) + holder.rate)

    def adjust(i):
        if i == 3:
            holder.rate = 1.0

    @tf.function
    def steps(count):
        for i in tf.range(count):
            adjust(i)
            strategy.run(step)

    with pytest.raises(tf.errors.ContextError, match=r"step computes something else in the last"):
        steps(tf.constant(NUM))
    assert float(total) == 0.0
    # Between calls it may change: each loop traces anew.
    steps(tf.constant(3))
    assert float(total) == 6.0


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
    counter = Settings()

    def step():
        counter.traces += 1
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
    # Three traces for each of the two calls, and those that found out that the function loops.
    assert counter.traces <= 2 * 3 + 2


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


def make(captured, default=None):
    def function(default=default, *, named=default):
        return captured, function

    return function


@pytest.mark.parametrize(
    "captured", [1, 1.5, None, "text", (1, 2), [1, {"a": 2}], settings, np.ones(3), len]
)
def test_functions_that_capture_the_same_have_equal_keys(captured):
    assert captured_key(make(captured)) == captured_key(make(captured))
    assert captured_key(make(captured)) != captured_key(make("other"))
    assert captured_key(make(0, captured)) != captured_key(make(0, "other"))
    assert captured_key(functools.partial(make, captured)) != captured_key(make)


@pytest.mark.parametrize(("one", "other"), [(1, True), (1, 1.0), (0.0, -0.0), ([1], (1,))])
def test_values_that_only_look_equal_differ(one, other):
    assert captured_key(make(one)) != captured_key(make(other))


def test_large_arrays_that_may_change_in_place_equal_nothing():
    array = np.zeros(1 << 16)
    assert captured_key(make(array)) != captured_key(make(array))
