"""Losses of replicas add up to that of the global batch."""

import jax.numpy as jnp
import numpy as np
import pytest

import stratagem as sg

pytestmark = pytest.mark.about("calls")


average = sg.nn.compute_average_loss


def test_average_over_the_global_batch(strategy, execute_ragged):
    n = strategy.num_replicas_in_sync
    for rows in (2 * n, 2 * n + 1, 1):
        losses = np.arange(rows, dtype=np.float32) + 1
        weights = np.arange(rows, dtype=np.float32) % 3
        batches = sg.data.Dataset.from_tensor_slices((losses, weights)).batch(rows)
        for batch in strategy.experimental_distribute_dataset(batches):
            total = strategy.reduce(
                "SUM", execute_ragged(lambda x: strategy.run(average, x[:1]), batch)
            )
            assert float(total) == pytest.approx(losses.mean()), rows
            total = strategy.reduce(
                "SUM", execute_ragged(lambda x: strategy.run(average, x), batch)
            )
            assert float(total) == pytest.approx((losses * weights).mean()), rows


def test_gradient_of_the_average(strategy, execute_ragged):
    """Where replicas have different numbers of examples, and ask each other while they differentiate."""
    with strategy.scope():
        w = sg.Variable(2.0)
    rows = strategy.num_replicas_in_sync + 1
    values = np.arange(rows, dtype=np.float32)
    batches = sg.data.Dataset.from_tensor_slices(values).batch(rows)

    def step(x):
        return sg.value_and_grad(lambda: average(w * x), w)()[1]

    for batch in strategy.experimental_distribute_dataset(batches):
        gradients = execute_ragged(lambda x: strategy.run(step, (x,)), batch)
        assert float(strategy.reduce("SUM", gradients)) == pytest.approx(values.mean())


def test_given_global_batch_size(strategy, execute):
    def step():
        traced = average(jnp.ones(2), global_batch_size=jnp.int32(8) * 1)
        return average(jnp.ones(2), global_batch_size=4) + traced

    total = strategy.reduce("SUM", execute(lambda: strategy.run(step)))
    assert float(total) == pytest.approx(0.75 * strategy.num_replicas_in_sync)


def test_regularization_is_shared_out(strategy, execute):
    parts = execute(
        lambda: strategy.run(lambda: sg.nn.scale_regularization_loss([1.0, [2.0, 4.0]]))
    )
    assert float(strategy.reduce("SUM", parts)) == pytest.approx(7)


def test_outside_of_replicas(placed_strategy):
    with placed_strategy.scope():
        with pytest.raises(RuntimeError, match="global_batch_size"):
            average([1.0, 2.0])
        with pytest.raises(RuntimeError, match="cross-replica"):
            sg.nn.scale_regularization_loss(1.0)
        assert float(average([1.0, 2.0], global_batch_size=3)) == 1
