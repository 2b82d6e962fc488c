"""What becomes of a model's values while Keras takes it from step to step."""

import signal
import time

import keras
import numpy as np
import pytest

import stratagem as sg

X = np.random.default_rng(0).normal(size=(16, 3)).astype(np.float32)
Y = X.sum(1, keepdims=True)


@pytest.fixture(scope="module")
def strategy():
    return sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def make(strategy, *layers, optimizer="sgd"):
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), *(layer() for layer in layers)])
        model.compile(optimizer, "mse")
    return model


def dense(units, **options):
    return lambda: keras.layers.Dense(units, **options)


def test_layers_that_are_frozen_later_keep_their_weights(strategy):
    model = make(strategy, dense(3, activation="tanh", use_bias=False), dense(3, use_bias=False))
    before = model.predict(X, verbose=0)
    model.layers[0].trainable = False
    np.testing.assert_allclose(model.predict(X, verbose=0), before, rtol=1e-6)
    model.layers[0].trainable, model.layers[1].trainable = True, False
    np.testing.assert_allclose(model.predict(X, verbose=0), before, rtol=1e-6)


def test_a_model_that_gets_another_layer(strategy):
    model = make(strategy, dense(4), dense(2))
    assert model.predict(X, verbose=0).shape == (16, 2)
    with strategy.scope():
        model.add(keras.layers.Dense(5))
    assert model.predict(X, verbose=0).shape == (16, 5)


def test_callbacks_see_and_use_the_model_between_steps(strategy):
    """By a name of their own, not as ``self.model``."""
    model = make(strategy, dense(4), dense(1))
    with strategy.scope():
        first = keras.Model(model.inputs, model.layers[0].output)
    seen = []

    def look(batch, logs):
        kernel, bias = model.layers[0].get_weights()
        np.testing.assert_allclose(first.predict(X, verbose=0), X @ kernel + bias, rtol=1e-5)
        np.testing.assert_allclose(model(X), model.predict(X, verbose=0), rtol=1e-5)
        seen.append((int(model.optimizer.iterations), kernel.sum(), model.layers[0].kernel.value))

    history = model.fit(
        *(X, Y),
        batch_size=8,
        epochs=2,
        shuffle=False,
        verbose=0,
        callbacks=[keras.callbacks.LambdaCallback(on_train_batch_end=look)],
    ).history
    assert [iterations for iterations, _, _ in seen] == [1, 2, 3, 4]
    assert len({float(total) for _, total, _ in seen}) == 4
    for _, total, kept in seen:
        assert float(np.sum(kept)) == pytest.approx(float(total), rel=1e-5)
    alone = make(strategy, dense(4), dense(1))
    expected = alone.fit(X, Y, batch_size=8, epochs=2, shuffle=False, verbose=0).history
    np.testing.assert_allclose(history["loss"], expected["loss"], rtol=1e-5)


def test_what_a_callback_assigns_counts_from_the_next_step(strategy):
    model = make(strategy, dense(1, use_bias=False))
    kernel = model.layers[0].kernel

    def reset(batch, logs):
        kernel.assign(np.zeros((3, 1), np.float32))

    callback = keras.callbacks.LambdaCallback(on_train_batch_end=reset)
    model.fit(X, Y, batch_size=8, shuffle=False, verbose=0, callbacks=[callback])
    assert not kernel.numpy().any()


def test_interrupts_lose_no_weights(strategy):
    model = make(strategy, dense(3), keras.layers.BatchNormalization, dense(1), optimizer="adam")
    model.fit(X, Y, batch_size=4, verbose=0)
    choose = np.random.default_rng(1)

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        end = time.monotonic() + 3
        while time.monotonic() < end:
            try:
                signal.setitimer(signal.ITIMER_REAL, float(choose.uniform(0.005, 0.08)))
                model.fit(X, Y, batch_size=4, epochs=50, verbose=0)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                pass
            assert all(np.isfinite(weights).all() for weights in model.get_weights())
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    model.fit(X, Y, batch_size=4, verbose=0)


def test_layers_that_hold_arrays_train(strategy):
    keras.utils.set_random_seed(0)
    with strategy.scope():
        normalization = keras.layers.Normalization()
        normalization.adapt(X)
        teacher = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model = keras.Sequential([keras.Input((3,)), normalization, keras.layers.Dense(1)])
        model.compile("sgd", lambda y, p: keras.ops.mean((p - teacher(y)) ** 2))
    losses = model.fit(X, X, batch_size=8, epochs=3, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
