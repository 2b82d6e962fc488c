import jax.numpy as jnp
import numpy as np
import optax
import pytest

import stratagem as sg

pytestmark = pytest.mark.about("collectives", "variables")


def make(strategy, *args, **kwargs):
    with strategy.scope():
        return sg.Variable(*args, **kwargs)


def results(strategy, value):
    return [np.asarray(part) for part in strategy.experimental_local_results(value)]


def test_a_tape_gives_what_value_and_grad_gives(strategy, execute):
    w, b = make(strategy, [[0.5, -1.0], [2.0, 0.3]]), make(strategy, [0.1, 0.2])
    unused = make(strategy, [1.0])

    def loss():
        replica = sg.distribute.get_replica_context()
        x = jnp.asarray(replica.replica_id_in_sync_group, jnp.float32) + jnp.array([1.0, 2.0])
        own = jnp.sum(jnp.tanh(x @ w + b) ** 2)
        return own + 0.5 * replica.all_reduce("MEAN", own)

    def with_tape():
        with sg.GradientTape() as tape:
            y = loss()
        return y, tape.gradient(y, {"w": w, "rest": [b, unused]}, unconnected_gradients="zero")

    def with_function():
        return sg.value_and_grad(loss, {"w": w, "rest": [b, unused]})()

    y, found = execute(lambda: strategy.run(with_tape))
    expected_y, expected = execute(lambda: strategy.run(with_function))
    pairs = [
        (y, expected_y),
        (found["w"], expected["w"]),
        (found["rest"][0], expected["rest"][0]),
        (found["rest"][1], expected["rest"][1]),
    ]
    for mine, other in pairs:
        for part, other_part in zip(results(strategy, mine), results(strategy, other), strict=True):
            np.testing.assert_allclose(part, other_part, rtol=1e-5, atol=1e-6)


def test_assignments_in_the_block_take_place_and_cut_the_gradient(strategy, execute):
    w = make(strategy, 3.0)
    average = make(strategy, 1.0, trainable=False, aggregation=sg.VariableAggregation.MEAN)

    def step():
        with sg.GradientTape() as tape:
            y = w * w
            average.assign(y * 0.5)
            z = y + average * w
        return z, tape.gradient(z, w)

    z, gradient = execute(lambda: strategy.run(step))
    for part in results(strategy, z):
        np.testing.assert_allclose(part, 9.0 + 4.5 * 3.0)
    for part in results(strategy, gradient):
        np.testing.assert_allclose(part, 2 * 3.0 + 4.5)
    np.testing.assert_allclose(average.numpy(), 4.5)


def test_second_order(strategy, execute):
    w = make(strategy, [1.0, 2.0])

    def step():
        with sg.GradientTape() as outer:
            with sg.GradientTape() as inner:
                y = jnp.sum(w**3)
            first = inner.gradient(y, w)
            penalty = jnp.sum(first**2)
        return first, outer.gradient(penalty, w)

    first, second = execute(lambda: strategy.run(step))
    for part in results(strategy, first):
        np.testing.assert_allclose(part, [3, 12])
    for part in results(strategy, second):
        np.testing.assert_allclose(part, [36, 288])


def test_an_optimizer_takes_the_gradients(strategy, execute):
    w = make(strategy, [1.0, 2.0], aggregation=sg.VariableAggregation.MEAN)
    with strategy.scope():
        optimizer = sg.train.Optimizer(optax.sgd(0.5))

    def step():
        with sg.GradientTape() as tape:
            loss = jnp.sum(w * w) / strategy.num_replicas_in_sync
        optimizer.apply_gradients([(tape.gradient(loss, w), w)])
        return loss

    execute(lambda: strategy.run(step))
    np.testing.assert_allclose(w.numpy(), [0, 0], atol=1e-6)


def test_rows_that_are_read(strategy, execute):
    table = make(strategy, np.arange(6.0, dtype=np.float32).reshape(3, 2))

    def step():
        with sg.GradientTape() as tape:
            y = jnp.sum(table.sparse_read(jnp.array([2, 0, 2])) ** 2)
        gradient = tape.gradient(y, table)
        return gradient.to_dense() if isinstance(gradient, sg.IndexedSlices) else gradient

    for part in results(strategy, execute(lambda: strategy.run(step))):
        np.testing.assert_allclose(part, [[0, 2], [0, 0], [16, 20]])


def test_a_tape_around_run_in_a_function(strategy):
    w = make(strategy, [1.0, 2.0])

    @sg.function
    def step(x):
        with sg.GradientTape() as tape:
            own = strategy.run(lambda x: jnp.sum(w * w * x), args=(x,))
            loss = strategy.reduce("SUM", own, axis=None)
        return loss, tape.gradient(loss, w)

    kind = f"{type(strategy).__name__} {type(w).__name__}"
    if strategy.num_replicas_in_sync > 1 and ("ParameterServer" in kind or "FullySharded" in kind):
        with pytest.raises(sg.errors.VariableError, match="Open the tape inside that function"):
            step(jnp.float32(3.0))
        return
    _, gradient = step(jnp.float32(3.0))
    expected = np.array([6.0, 12.0]) * strategy.num_replicas_in_sync
    np.testing.assert_allclose(gradient, expected, rtol=1e-6)
