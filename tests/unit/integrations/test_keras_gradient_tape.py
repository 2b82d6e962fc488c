"""A tape around Keras gives the gradients that JAX gives of the stateless model."""

import jax
import numpy as np
import pytest
from keras_settings import MODES, assert_no_tracers

import stratagem as tf

keras = tf.keras


def dense():
    return keras.Sequential(
        [
            keras.layers.Dense(6, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(2),
        ]
    )


def recurrent():
    return keras.Sequential(
        [keras.layers.Reshape((3, 2)), keras.layers.LSTM(4), keras.layers.Dense(2)]
    )


def batch():
    random = np.random.default_rng(0)
    return random.normal(size=(8, 6)).astype(np.float32), random.integers(0, 2, 8).astype(np.int32)


LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def expected_gradients(model, x, y):
    trainable = [np.asarray(v.value) for v in model.trainable_variables]
    others = [np.asarray(v.value) for v in model.non_trainable_variables]

    def loss(trainable):
        return LOSS(y, model.stateless_call(trainable, others, x, training=True)[0])

    return jax.value_and_grad(loss)(trainable)


def same(found, expected):
    for mine, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("mode", ["eager", "compiled"])
@pytest.mark.parametrize("make", [dense, pytest.param(recurrent, marks=pytest.mark.slow)])
def test_model_of_no_strategy(mode, make):
    model, (x, y) = make(), batch()

    @MODES[mode]
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = LOSS(y, model(x, training=True))  # the first call builds it
        return loss, tape.gradient(loss, model.trainable_variables)

    step(x, y)
    expected_loss, expected = expected_gradients(model, x, y)
    loss, found = step(x, y)
    same([loss, *found], [expected_loss, *expected])
    assert_no_tracers(model)


def test_weights_that_fit_has_trained():
    model, (x, y) = dense(), batch()
    model.compile(optimizer=keras.optimizers.SGD(0.1), loss=LOSS)
    model.fit(x, y, batch_size=8, epochs=1, verbose=0)
    optimizer = keras.optimizers.SGD(0.1)
    losses = []
    for _ in range(3):
        with tf.GradientTape() as tape:
            loss = LOSS(y, model(x, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        losses.append(float(loss))
    assert losses[0] > losses[1] > losses[2]


@pytest.mark.parametrize("mode", ["eager", "compiled"])
def test_replicas(mode):
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    x, y = batch()
    with strategy.scope():
        model = dense()
        model.build((None, 6))
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(model.trainable_variables)
        mean = keras.metrics.Mean()
    _, expected = expected_gradients(model, x, y)
    before = [np.asarray(v.value) for v in model.trainable_variables]

    def replica_step(x, y):
        with tf.GradientTape() as tape:
            loss = LOSS(y, model(x, training=True)) / strategy.num_replicas_in_sync
            mean.update_state(loss)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @MODES[mode]
    def step(x, y):
        return strategy.run(replica_step, args=(x, y))

    # Both replicas get all, so that their statistics are those of the whole batch.
    losses = strategy.experimental_local_results(step(x, y))
    np.testing.assert_allclose(float(mean.result()), float(losses[0]), rtol=1e-5)
    after = [np.asarray(v.value) for v in model.trainable_variables]
    same(after, [b - 0.1 * g for b, g in zip(before, expected, strict=True)])
