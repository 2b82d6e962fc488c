"""Keras models whose variables lie in parts on the replicas train as those that every replica has."""

import pytest
from keras_training import (
    KERAS_ARRAYS,
    assert_same,
    keras,
    make_data,
    mirrored,
    scope_of,
    small_model,
)

import stratagem as sg
from stratagem._src.variables.foreign_variables import variable_of
from stratagem._src.variables.fully_sharded_variable import FullyShardedVariable

FullySharded = sg.distribute.experimental.FullySharded

pytestmark = pytest.mark.filterwarnings(KERAS_ARRAYS)


def network():
    """Seeds, running statistics and weights that two replicas do not divide."""
    layers = keras.layers
    # A bias would be normalized away, and its gradient be nothing but rounding.
    first = layers.Dense(5, use_bias=False)
    model = small_model(first, layers.BatchNormalization(), layers.Dropout(0.5))
    model.compile(keras.optimizers.Adam(0.05), "mse", metrics=["mae"])
    return model


def fitted(strategy):
    with scope_of(strategy), FullySharded(min_size=1):
        model = network()
        model.optimizer.build(model.trainable_variables)
    x, y = make_data()
    history = model.fit(x, y, batch_size=10, epochs=2, shuffle=False, verbose=0).history
    if strategy is not None:
        divided = [*model.trainable_variables, *model.optimizer.variables]
        kinds = {type(variable_of(v)) for v in divided if v.shape}
        assert kinds == {FullyShardedVariable}
    evaluated = model.evaluate(x, y, verbose=0)
    return history, evaluated, model.predict(x, verbose=0), model.get_weights()


@pytest.mark.slow
def test_fit():
    assert_same(fitted, mirrored(2))


@pytest.mark.parametrize("wrap", [pytest.param(lambda fn: fn, marks=pytest.mark.slow), sg.function])
def test_a_loop_of_ones_own(wrap):
    strategy = mirrored(2)
    x, y = make_data(8)

    def train(block):
        with scope_of(strategy), block:
            model = network()
            seen = keras.metrics.Mean()
            model.optimizer.build(model.trainable_variables)

        def replica():
            def loss():
                return keras.ops.mean((model(x, training=True) - y) ** 2)

            value, gradients = sg.value_and_grad(loss, model.trainable_variables)()
            model.optimizer.apply(gradients, model.trainable_variables)
            seen.update_state(value)

        step = wrap(lambda: strategy.run(replica))
        step()
        step()
        return model.get_weights(), float(seen.result())

    blocks = {None: FullySharded(min_size=2**20), strategy: FullySharded(min_size=1)}
    assert_same(lambda which: train(blocks[which]), strategy)
