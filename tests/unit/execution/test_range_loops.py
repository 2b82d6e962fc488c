"""Loops over ``tf.range`` in a function: as many steps as asked for, one compilation."""

from __future__ import annotations

import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stratagem as tf


@pytest.fixture(params=[1, 2])
def strategy(request):
    return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(request.param)])


@pytest.fixture
def total(strategy):
    with strategy.scope():
        return tf.Variable(0.0, aggregation=tf.VariableAggregation.SUM)


@pytest.fixture
def iterator(strategy):
    rows = tf.data.Dataset.from_tensor_slices(np.arange(8, dtype=np.float32)).repeat().batch(2)
    made = iter(strategy.experimental_distribute_dataset(rows))
    yield made
    made.close()


@pytest.mark.parametrize("as_array", [False, True])
def test_steps_are_compiled_once_for_any_number(strategy, total, iterator, as_array, caplog):
    def step(x):
        total.assign_add(jnp.sum(x))

    @tf.function
    def steps(iterator, count):
        for _ in tf.range(count):
            strategy.run(step, args=(next(iterator),))

    # Rows 0 to 7, two at a time.
    expected = 0.0
    for count, added in ((4, 28.0), (100, 25 * 28.0), (1, 1.0), (0, 0.0)):
        steps(iterator, tf.constant(count) if as_array else count)
        expected += added
        assert float(total) == expected
    assert steps.experimental_get_tracing_count() <= 1 + (not as_array)
    assert "third time" not in caplog.text


def test_values_of_the_loop_are_python_s(strategy, iterator):
    @tf.function
    def steps(iterator):
        losses, scale = [], 1.0
        for i in tf.range(3):
            scale = scale * 2
            per_replica = strategy.run(lambda x, i: jnp.sum(x) + i, args=(next(iterator), i))
            losses.append(scale * strategy.reduce("SUM", per_replica, axis=None))
        return losses

    replicas = strategy.num_replicas_in_sync
    assert [float(x) for x in steps(iterator)] == [
        2 * 1.0,
        4 * (5.0 + replicas),
        8 * (9.0 + 2 * replicas),
    ]


def test_a_compiled_function_in_the_loop_is_traced_once(strategy, total):
    traced = []

    @tf.function
    def step(x):
        traced.append(x)
        strategy.run(lambda: total.assign_add(x / strategy.num_replicas_in_sync))

    @tf.function
    def steps(count):
        for i in tf.range(count):
            step(tf.cast(i, tf.float32))

    steps(tf.constant(1000))
    assert float(total) == 499_500.0
    assert step.experimental_get_tracing_count() == 1
    # Once with the function around it, and once by itself.
    assert len(traced) == 2


def test_a_failed_loop_takes_all_of_its_steps_back(strategy, total, iterator):
    @tf.function
    def steps(iterator, count):
        for i in tf.range(count):
            strategy.run(lambda x: total.assign_add(jnp.sum(x)), args=(next(iterator),))
            if i == 3:
                raise KeyError("stop")

    with pytest.raises(KeyError, match="stop"):
        steps(iterator, tf.constant(6))
    assert float(total) == 0.0


def test_variables_that_the_first_step_creates(strategy, iterator):
    made = []

    def step(x):
        if not made:
            made.append(tf.Variable(jnp.zeros(()) + 1, aggregation=tf.VariableAggregation.SUM))
        made[0].assign_add(jnp.sum(x))

    @tf.function
    def steps(iterator):
        for _ in tf.range(4):
            strategy.run(step, args=(next(iterator),))

    with strategy.scope():
        steps(iterator)
    assert float(made[0]) == 29.0


def test_ranges_that_are_arrays_stay_arrays():
    @tf.function
    def compute(x):
        for i in tf.range(3):
            x = x * 2 + i
        scanned = jax.lax.scan(lambda c, i: (c + i, i), 0, tf.range(4))[0]
        return x + tf.range(2), tf.gather(x, tf.range(1)), jnp.sum(tf.range(3)), scanned

    results = compute(tf.constant([1, 2]))
    assert [np.asarray(r).tolist() for r in results] == [[12, 21], [12], 3, 6]
    with pytest.raises(tf.errors.TracedValueError, match="unless the result is looped over"):
        tf.function(lambda n: tf.range(n) * 2)(tf.constant(3))


def test_a_long_loop_without_steps_is_told_to_be_unrolled(caplog):
    @tf.function
    def compute(x):
        for _ in tf.range(40):
            x = x + 1
        return x

    with caplog.at_level(logging.WARNING):
        assert float(compute(tf.constant(1.0))) == 41.0
    assert "unrolled" in caplog.text


def test_a_python_loop_over_steps_is_told_to_be_unrolled(caplog):
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])

    def step():
        return tf.distribute.get_replica_context().all_reduce("SUM", jnp.ones(()))

    @tf.function
    def steps(count):
        for _ in range(count):
            strategy.run(step)

    with caplog.at_level(logging.WARNING):
        steps(2)
        assert "unrolled" not in caplog.text
        steps(3)
        steps(4)
    assert caplog.text.count("is unrolled") == 1
