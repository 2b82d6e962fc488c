"""Dropout and BatchNorm of flax nnx in steps, as docs/flax.md writes them."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import stratagem as sg

ROWS = np.random.default_rng(0).normal(size=(16, 3)).astype(np.float32)
TARGETS = ROWS @ np.array([[1.0], [-2.0], [3.0]], np.float32)


class Network(nnx.Module):
    def __init__(self, rate, axis_name=None):
        rngs = nnx.Rngs(0)
        self.norm = nnx.BatchNorm(3, axis_name=axis_name, rngs=rngs)
        self.dropout = nnx.Dropout(rate, rngs=rngs)
        self.again = nnx.Dropout(rate, rngs=rngs)
        self.out = nnx.Linear(3, 1, rngs=rngs)

    def __call__(self, x):
        return self.out(self.again(self.dropout(self.norm(x))))


def train(network, num_replicas, *, compiled, steps=3):
    """Returns the trained parameters and running averages, flat, and the keys that replicas used."""
    strategy = sg.distribute.MirroredStrategy([f"CPU:{i}" for i in range(num_replicas)])
    definition, parameters, averages, streams = nnx.split(network, nnx.Param, nnx.BatchStat, ...)
    with strategy.scope():
        parameters = jax.tree.map(sg.Variable, parameters)
        averages = jax.tree.map(
            lambda value: sg.Variable(
                value, trainable=False, aggregation=sg.VariableAggregation.MEAN
            ),
            averages,
        )
    generator = sg.random.Generator.from_seed(0)
    optimizer = sg.train.Optimizer(optax.sgd(0.1))

    def replica_step(x, y):
        key = generator.next_key()

        def loss():
            model = nnx.merge(definition, parameters, averages, streams, copy=True)
            nnx.reseed(model, default=key)
            losses = ((model(x) - y) ** 2)[:, 0]
            return sg.nn.compute_average_loss(losses), nnx.state(model, nnx.BatchStat)

        (_, new), gradients = sg.value_and_grad(loss, parameters, has_aux=True)()
        optimizer.apply(gradients, parameters)
        jax.tree.map(
            lambda variable, value: variable.assign(value),
            averages,
            new,
            is_leaf=lambda leaf: isinstance(leaf, sg.Variable),
        )
        return jax.random.key_data(key)

    step = lambda batch: strategy.run(replica_step, args=batch)  # noqa: E731
    step = sg.function(step) if compiled else step
    dataset = sg.data.Dataset.from_tensor_slices((ROWS, TARGETS)).batch(16).repeat(steps)
    keys = []
    for batch in strategy.experimental_distribute_dataset(dataset):
        for key in strategy.experimental_local_results(step(batch)):
            keys.append(tuple(np.asarray(key).tolist()))
    flat = np.concatenate(
        [np.asarray(leaf).ravel() for leaf in jax.tree.leaves((parameters, averages))]
    )
    return flat, keys


@pytest.mark.parametrize("num_replicas", [1, 2])
def test_eager_and_compiled_steps_agree(num_replicas):
    compiled, _ = train(Network(0.0), num_replicas, compiled=True)
    eager, _ = train(Network(0.0), num_replicas, compiled=False)
    np.testing.assert_allclose(compiled, eager, rtol=1e-5, atol=1e-6)


def test_running_averages_are_the_mean_of_the_replicas():
    flat, _ = train(Network(0.0), 2, compiled=True, steps=1)
    means = []
    for half in (ROWS[:8], ROWS[8:]):
        network = Network(0.0)
        network(half)
        means.append(jax.tree.leaves(nnx.state(network, nnx.BatchStat)))
    expected = np.concatenate([np.mean(pair, axis=0) for pair in zip(*means, strict=True)])
    np.testing.assert_allclose(flat[-len(expected) :], expected, rtol=1e-5, atol=1e-6)


def test_statistics_of_the_global_batch_equal_those_of_one_device():
    one, _ = train(Network(0.0), 1, compiled=True)
    two, _ = train(Network(0.0, axis_name="replica"), 2, compiled=True)
    np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("compiled", [True, False])
def test_each_step_and_replica_has_its_own_key(compiled):
    first, keys = train(Network(0.5), 2, compiled=compiled)
    again, repeated = train(Network(0.5), 2, compiled=compiled)
    assert len(set(keys)) == 6
    assert keys == repeated
    np.testing.assert_array_equal(first, again)
    without, _ = train(Network(0.0), 2, compiled=compiled)
    assert np.abs(first - without).max() > 1e-3


def test_layers_draw_masks_of_their_own():
    network = Network(0.5)
    nnx.reseed(network, default=jax.random.key(3))
    ones = jnp.ones((4, 8))
    assert (network.dropout(ones) != network.again(ones)).any()


def test_a_trained_module_gets_its_values_back():
    network = nnx.Linear(3, 1, rngs=nnx.Rngs(0))
    strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    definition, parameters = nnx.split(network)
    with strategy.scope():
        parameters = jax.tree.map(sg.Variable, parameters)
    parameters["bias"].get_raw_value().assign([2.0])
    assert float(network.bias[...][0]) == 0.0  # stale
    nnx.update(network, jax.tree.map(jnp.asarray, parameters))
    merged = nnx.merge(definition, parameters, copy=True)
    np.testing.assert_array_equal(network(ROWS), merged(ROWS))
    assert float(network.bias[...][0]) == 2.0
