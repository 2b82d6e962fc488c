"""Whatever fails while a model is trained, it keeps the values of the last step that succeeded."""

import contextlib
import signal
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from keras_training import KERAS_ARRAYS, keras, make_data, mirrored, scope_of, small_model

import stratagem as sg

pytestmark = pytest.mark.filterwarnings(KERAS_ARRAYS)

X, Y = make_data(16)


class Gone(Exception):
    """What fails in these tests."""


def make_model(*layers, **options):
    with scope_of(mirrored(2)):
        model = small_model(*layers)
        model.compile("sgd", "mse", **options)
    return model


def assert_whole(model):
    """Checks that every variable has a value that can be read, and that the model goes on."""
    for variable in [*model.variables, *model.optimizer.variables, *model.metrics_variables]:
        assert isinstance(variable.value, jax.Array)
        np.asarray(variable.value)
    assert np.isfinite(model.predict(X[:4], verbose=0)).all()
    assert model.fit(X[:4], Y[:4], batch_size=4, verbose=0).history["loss"]


class Remember(keras.callbacks.Callback):
    """Keeps the weights after each step, and raises after some of them."""

    def __init__(self, fail_at=None, error=Gone):
        super().__init__()
        self.weights = []
        self.fail_at = fail_at
        self.error = error

    def on_train_batch_end(self, batch, logs=None):
        self.weights.append(self.model.get_weights())
        if batch == self.fail_at:
            raise self.error


def batches(count, error=Gone):
    for i in range(count):
        yield X[i : i + 4], Y[i : i + 4]
    raise error


def assert_equal(weights, others):
    for one, other in zip(weights, others, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("count", [0, 2])
def test_data_that_fail(count):
    model, seen = make_model(), Remember()
    before = model.get_weights()
    with pytest.raises(Gone):
        model.fit(batches(count + 1), steps_per_epoch=8, verbose=0, callbacks=[seen], shuffle=False)
    assert len(seen.weights) in (count, count + 1)
    assert_equal(model.get_weights(), [before, *seen.weights][-1])
    assert_whole(model)


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_no_data():
    model = make_model()
    before = model.get_weights()
    with pytest.raises((Gone, ValueError, UnboundLocalError)):
        model.fit(iter_nothing(), verbose=0, shuffle=False)
    assert_equal(model.get_weights(), before)
    assert_whole(model)


def iter_nothing():
    yield from ()


@pytest.mark.parametrize("error", [Gone, KeyboardInterrupt])
def test_a_callback_that_fails(error):
    model, seen = make_model(), Remember(fail_at=2, error=error)
    with pytest.raises(error):
        model.fit(X, Y, batch_size=4, verbose=0, callbacks=[seen])
    assert len(seen.weights) == 3
    assert_equal(model.get_weights(), seen.weights[-1])
    assert_whole(model)


@pytest.mark.parametrize("method", ["evaluate", "predict"])
def test_a_callback_of_evaluate_and_predict_that_fails(method):
    class Fail(keras.callbacks.Callback):
        def on_test_batch_end(self, batch, logs=None):
            raise Gone

        on_predict_batch_end = on_test_batch_end

    model = make_model()
    before = model.get_weights()
    data = (X, Y) if method == "evaluate" else (X,)
    with pytest.raises(Gone):
        getattr(model, method)(*data, verbose=0, callbacks=[Fail()])
    assert_equal(model.get_weights(), before)
    assert_whole(model)


def test_a_step_that_cannot_be_traced():
    class Refuse(keras.layers.Layer):
        def call(self, x, training=False):
            if training:
                raise Gone
            return x

    model = make_model(Refuse(), steps_per_execution=2)
    before = model.get_weights()
    for _ in range(2):
        with pytest.raises(Gone):
            model.fit(X, Y, batch_size=4, verbose=0)
        with pytest.raises(Gone):
            model.train_on_batch(X, Y)
        assert_equal(model.get_weights(), before)
    assert np.isfinite(model.predict(X[:4], verbose=0)).all()


def test_a_batch_that_does_not_fit_after_some_that_did():
    def data():
        yield X[:4], Y[:4]
        yield X[:4], Y[:4]
        yield X[:4, :2], Y[:4]

    model, seen = make_model(steps_per_execution=2), Remember()
    with pytest.raises(ValueError):
        model.fit(data(), verbose=0, callbacks=[seen], shuffle=False)
    assert_equal(model.get_weights(), seen.weights[-1])
    assert_whole(model)


def test_a_program_that_fails_while_it_runs():
    fails = []

    def check(x):
        if fails:
            raise Gone
        return x

    class Check(keras.layers.Layer):
        def call(self, x, training=False):
            if not training:
                return x
            return x + jax.lax.stop_gradient(
                jax.pure_callback(check, jax.ShapeDtypeStruct((), jnp.float32), jnp.float32(0))
            )

    class Begin(Remember):
        def on_train_batch_end(self, batch, logs=None):
            super().on_train_batch_end(batch, logs)
            if batch == 1:
                fails.append(True)

    model, seen = make_model(Check()), Begin()
    with pytest.raises(Gone):
        model.fit(X, Y, batch_size=4, verbose=0, callbacks=[seen])
    fails.clear()
    assert_equal(model.get_weights(), seen.weights[-1])
    assert_whole(model)


@pytest.fixture
def _alarm_is_ctrl_c():
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    yield
    signal.signal(signal.SIGALRM, before)


@pytest.mark.slow
@pytest.mark.usefixtures("_alarm_is_ctrl_c")
def test_interrupts_at_any_moment():
    """Ctrl-C comes between any two instructions; the model is whole after each."""
    model = make_model()
    model.fit(X, Y, batch_size=4, verbose=0)
    random = np.random.default_rng(0)
    deadline = time.monotonic() + 1.5
    interrupted = 0
    while time.monotonic() < deadline:
        signal.setitimer(signal.ITIMER_REAL, float(random.uniform(1e-4, 5e-2)))
        try:
            model.fit(X, Y, batch_size=4, epochs=1000, verbose=0)
        except KeyboardInterrupt:
            interrupted += 1
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
        for variable in [*model.variables, *model.optimizer.variables, *model.metrics_variables]:
            assert np.isfinite(variable.numpy()).all()
    assert interrupted > 3
    assert_whole(model)


@pytest.mark.parametrize("name", ["train_step", "test_step", "predict_step"])
def test_a_step_that_takes_neither_form_of_arguments_is_refused(name):
    def step(self, first, second, third):
        raise AssertionError("not called")

    kind = type("Own", (keras.Sequential,), {name: step})
    strategy = mirrored(2)
    x = np.zeros((4, 3), "float32")
    for scope in (strategy.scope, contextlib.nullcontext):
        with scope():
            model = kind([keras.Input((3,)), keras.layers.Dense(1)])
            model.compile("sgd", "mse")
        call = {"train_step": model.fit, "test_step": model.evaluate, "predict_step": model.predict}
        data = (x,) if name == "predict_step" else (x, x[:, :1])
        with pytest.raises(sg.errors.InvalidArgumentError, match=rf"{name}\(self, data\), or"):
            call[name](*data, verbose=0)
