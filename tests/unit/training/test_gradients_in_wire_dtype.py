"""A strategy whose gradients travel in another dtype: what it converts, and what it refuses."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import stratagem as sg
from stratagem._src.core.errors import UnsupportedError

FINE = np.float32(1.0 + 2.0**-20)
"""1 in bfloat16."""


@pytest.fixture
def make_strategy():
    def make(dtype):
        options = sg.distribute.experimental.CommunicationOptions(dtype=dtype)
        strategy = sg.distribute.MultiWorkerMirroredStrategy(communication_options=options)
        assert strategy.num_replicas_in_sync > 1
        return strategy

    return make


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_accumulated_gradients_are_rounded_once(make_strategy, dtype, compiled):
    strategy = make_strategy(dtype)
    with strategy.scope():
        weight = sg.Variable(jnp.zeros(8))
        optimizer = sg.train.Optimizer(optax.sgd(1.0), gradient_accumulation_steps=2)

    def replica_fn():
        optimizer.apply_gradients([(FINE * jnp.ones(8), weight)])

    def step():
        strategy.run(replica_fn)

    execute = sg.function(step) if compiled else step
    for _ in range(2):
        execute()
    # Each replica's sum of two calls is 2 * FINE, which is 2 in bfloat16; the update is by their mean.
    each = 1.0 if dtype else FINE
    expected = np.full(8, -np.float32(each) * strategy.num_replicas_in_sync)
    np.testing.assert_array_equal(np.asarray(weight.read_value()), expected)
    for _ in range(2):
        execute()
    np.testing.assert_array_equal(np.asarray(weight.read_value()), 2 * expected)


def test_fully_sharded_variables_are_refused(make_strategy):
    strategy = make_strategy("bfloat16")
    with strategy.scope(), sg.distribute.experimental.FullySharded(min_size=2):
        sg.Variable(jnp.zeros(8), trainable=False)
        with pytest.raises(UnsupportedError, match=r"fully sharded.*'bfloat16'"):
            sg.Variable(jnp.zeros(8))
