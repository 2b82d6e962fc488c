"""``train_step(self, data)`` and the other steps that take only the data."""

import contextlib

import numpy as np
import pytest
from keras_training import KERAS_ARRAYS, assert_same, keras, make_data, mirrored, scope_of

import stratagem as sg

pytestmark = pytest.mark.filterwarnings(KERAS_ARRAYS)


class Vae(keras.Model):
    """Has no ``call``: its layers are built by the step."""

    def __init__(self):
        super().__init__()
        self.encoder = keras.layers.Dense(4, activation="tanh")
        self.mean, self.log_var = keras.layers.Dense(2), keras.layers.Dense(2)
        self.decoder = keras.Sequential(
            [keras.layers.Dense(4), keras.layers.BatchNormalization(), keras.layers.Dense(3)]
        )
        self.seeds = keras.random.SeedGenerator(5)
        self.total = keras.metrics.Mean(name="loss")
        self.kl = keras.metrics.Mean(name="kl")

    @property
    def metrics(self):
        return [self.total, self.kl]

    def train_step(self, data):
        with sg.GradientTape() as tape:
            hidden = self.encoder(data)
            mean, log_var = self.mean(hidden), self.log_var(hidden)
            noise = keras.random.normal(mean.shape, seed=self.seeds)
            decoded = self.decoder(mean + sg.exp(0.5 * log_var) * noise, training=True)
            error = sg.reduce_mean(sg.reduce_sum((data - decoded) ** 2, axis=1))
            kl = -0.5 * sg.reduce_mean(1 + log_var - mean**2 - sg.exp(log_var))
            loss = error + kl
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        self.total.update_state(loss)
        self.kl.update_state(kl)
        return {"loss": self.total.result(), "kl": self.kl.result()}


class Gan(keras.Model):
    def __init__(self):
        super().__init__()
        self.d = keras.Sequential([keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)])
        self.g = keras.Sequential([keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(3)])
        self.seeds = keras.random.SeedGenerator(5)
        self.d_loss = keras.metrics.Mean(name="d_loss")
        self.g_loss = keras.metrics.Mean(name="g_loss")

    @property
    def metrics(self):
        return [self.d_loss, self.g_loss]

    def compile(self, d_optimizer, g_optimizer, loss_fn):
        super().compile()
        self.d_optimizer, self.g_optimizer, self.loss_fn = d_optimizer, g_optimizer, loss_fn

    def train_step(self, real):
        count = sg.shape(real)[0]
        fake = self.g(keras.random.normal((count, 2), seed=self.seeds))
        labels = sg.concat([sg.ones((count, 1)), sg.zeros((count, 1))], axis=0)
        with sg.GradientTape() as tape:
            d_loss = self.loss_fn(labels, self.d(sg.concat([fake, real], axis=0)))
        weights = self.d.trainable_weights
        self.d_optimizer.apply_gradients(zip(tape.gradient(d_loss, weights), weights, strict=True))
        noise = keras.random.normal((count, 2), seed=self.seeds)
        with sg.GradientTape() as tape:
            g_loss = self.loss_fn(sg.zeros((count, 1)), self.d(self.g(noise)))
        weights = self.g.trainable_weights
        self.g_optimizer.apply_gradients(zip(tape.gradient(g_loss, weights), weights, strict=True))
        self.d_loss.update_state(d_loss)
        self.g_loss.update_state(g_loss)
        return {metric.name: metric.result() for metric in self.metrics}


def history_and_weights(model, *objects, **fit):
    history = model.fit(**fit, batch_size=8, epochs=2, shuffle=False, verbose=0).history
    again = model.fit(**fit, batch_size=8, epochs=1, shuffle=False, verbose=0).history
    state = [np.asarray(v) for one in (model, *objects) for v in one.variables]
    return history, again, state


def train_vae(strategy):
    x, _ = make_data()
    with scope_of(strategy):
        model = Vae()
        model.compile(keras.optimizers.SGD(0.01, momentum=0.9))
    return history_and_weights(model, model.optimizer, x=x)


def train_gan(strategy):
    x, _ = make_data()
    with scope_of(strategy):
        model = Gan()
        loss = keras.losses.BinaryCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(0.01), keras.optimizers.SGD(0.1, momentum=0.9), loss)
    result = history_and_weights(model, model.d_optimizer, model.g_optimizer, x=x)
    assert int(model.d_optimizer.iterations) == int(model.g_optimizer.iterations) == 9
    return result


class Recurrent(keras.Model):
    """Calls the steps of Keras."""

    def __init__(self):
        super().__init__()
        self.recurrent = keras.layers.LSTM(3)
        self.dropout = keras.layers.Dropout(0.3, seed=1)
        self.dense = keras.layers.Dense(1, kernel_regularizer="l2", activity_regularizer="l1")

    def call(self, x, training=False):
        return self.dense(self.dropout(self.recurrent(x[:, :, None]), training=training))


class InPlace(Recurrent):
    def train_step(self, data):
        return super().train_step(data)

    def test_step(self, data):
        return super().test_step(data)

    def predict_step(self, data):
        return super().predict_step(data)


def train_recurrent(kind, strategy, **options):
    x, y = make_data()
    with scope_of(strategy):
        model = kind()
        model.compile(keras.optimizers.SGD(0.1, clipnorm=1.0), "mse", metrics=["mae"], **options)
    result = history_and_weights(model, x=x, y=y, validation_data=(x, y))
    return result, model.evaluate(x, y, verbose=0), model.predict(x, verbose=0)


def central(count):
    return sg.distribute.experimental.CentralStorageStrategy([f"CPU:{i}" for i in range(count)])


@pytest.mark.parametrize("make", [mirrored, central])
@pytest.mark.parametrize("train", [train_vae, train_gan])
def test_models_with_their_own_steps_train_as_without_a_strategy(make, train):
    assert_same(train, make(2), rtol=2e-4, atol=2e-5)


# Eagerly, each operation compiles alone, which takes half a minute.
@pytest.mark.parametrize("strategy", [None, 2])
@pytest.mark.parametrize(
    "options", [{}, pytest.param({"run_eagerly": True}, marks=pytest.mark.slow)]
)
def test_the_steps_of_keras_take_data_with_the_same_numbers(strategy, options):
    strategy = strategy and mirrored(strategy)
    assert_same(
        lambda kind: train_recurrent(kind or Recurrent, strategy, **options),
        InPlace,
        rtol=1e-4,
        atol=1e-5,
    )


@pytest.mark.parametrize("scoped", [False, True])
def test_steps_of_keras_2(scoped):
    class Keras2(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1, kernel_regularizer=keras.regularizers.L2(0.1))

        def call(self, x):
            return self.dense(x)

        def train_step(self, data):
            x, y = data
            with sg.GradientTape() as tape:
                predicted = self(x, training=True)
                loss = self.compiled_loss(y, predicted, regularization_losses=self.losses)
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            self.compiled_metrics.update_state(y, predicted)
            return {metric.name: metric.result() for metric in self.metrics}

    x, y = make_data()
    with mirrored(2).scope() if scoped else contextlib.nullcontext():
        keras.utils.set_random_seed(1)
        model = Keras2()
        model.compile("sgd", "mse", metrics=["mae"])
    model(x)
    kernel, bias = (np.asarray(w) for w in model.get_weights())
    history = model.fit(x, y, batch_size=24, epochs=1, verbose=0).history
    residual = x @ kernel + bias - y
    loss = np.mean(residual**2) + 0.1 * np.sum(kernel**2)
    assert history["loss"] == [pytest.approx(loss, rel=1e-5)]
    assert history["mae"] == [pytest.approx(np.mean(np.abs(residual)), rel=1e-5)]
    gradient = 2 * x.T @ residual / len(x) + 0.2 * kernel
    np.testing.assert_allclose(model.get_weights()[0], kernel - 0.01 * gradient, rtol=1e-4)


def test_a_step_with_loss_scaling():
    x, y = make_data()
    results = []
    for kind in (Recurrent, InPlace):
        keras.utils.set_random_seed(1)
        model = kind()
        optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))
        model.compile(optimizer, "mse")
        model.fit(x, y, batch_size=8, epochs=1, shuffle=False, verbose=0)
        results.append([np.asarray(v) for v in (*model.variables, *optimizer.variables)])
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("scoped", [False, True])
def test_an_assignment_that_would_be_lost_is_refused(scoped):
    with mirrored(2).scope() if scoped else contextlib.nullcontext():
        outside = keras.Variable(0.0, name="outside")

        class Counting(keras.Sequential):
            def train_step(self, data):
                outside.assign_add(1.0)
                return super().train_step(data)

        model = Counting([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    x, y = make_data()
    before = model.get_weights()
    with pytest.raises(sg.errors.VariableError, match=r"Counting assigns \['outside'\]"):
        model.fit(x, y, verbose=0)
    assert float(outside.value) == 0.0
    np.testing.assert_array_equal(model.get_weights()[0], before[0])
