"""What becomes of a model's values while Keras takes it from step to step."""

import gc
import itertools
import signal
import sys
import threading
import time

import jax
import keras
import numpy as np
import pytest

import stratagem as sg
from handlers import signals
from stratagem._src.integrations.keras import model_state
from stratagem._src.integrations.keras.step_function import StepFunction
from stratagem._src.integrations.keras.step_program import StepProgram
from stratagem._src.variables.locking import ACTIVE_CALLS

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


def test_what_a_thread_reads_as_fit_takes_it_is_not_donated(strategy, monkeypatch):
    """The thread has seen that nobody has the variable, and reads it when ``fit`` has taken it."""
    model = make(strategy, dense(1, use_bias=False))
    kernel, parts = model.layers[0].kernel, ("trainable_variables",)
    states = []

    def take_meanwhile():
        if not states:
            group = kernel.twin.group
            states.append(model_state.take_state(model, parts, group, donate=True))

    monkeypatch.setattr(kernel, "known_value", take_meanwhile, raising=False)
    read = kernel.value
    [[[taken]]] = states
    pointers = [
        {shard.data.unsafe_buffer_pointer() for shard in array.addressable_shards}
        for array in (read, taken)
    ]
    assert pointers[0].isdisjoint(pointers[1])
    model_state.return_state(model)


@pytest.mark.parametrize(
    "kind", [sg.distribute.MirroredStrategy, sg.distribute.CentralStorageStrategy]
)
def test_weights_that_were_read_survive_evaluation_and_training(kind):
    model = make(
        kind(["CPU:0", "CPU:1"]),
        dense(4),
        keras.layers.BatchNormalization,
        dense(1),
        optimizer="adam",
    )
    model.fit(X, Y, verbose=0)
    held = [weight.value for weight in model.weights]
    before = [np.array(array) for array in held]
    model.evaluate(X, Y, verbose=0)
    model.predict(X, verbose=0)
    model.fit(X, Y, verbose=0)
    for array, expected in zip(held, before, strict=True):
        np.testing.assert_array_equal(array, expected)
    assert not np.array_equal(before[0], model.weights[0])


# One may arrive in a callback of the garbage collector, which cannot raise.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
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


def test_a_handler_that_saves_while_it_interrupts_fit(strategy, tmp_path):
    """All weights are those between two steps; both kernels always are alike."""
    model = make(strategy, dense(1, kernel_initializer="ones", use_bias=False))
    twin = make(strategy, dense(1, kernel_initializer="ones", use_bias=False))
    with strategy.scope():
        inputs = keras.Input((3,))
        both = keras.Model(inputs, [model(inputs), twin(inputs)])
        both.compile("sgd", ["mse", "mse"])
    both.fit(X, [Y, Y], batch_size=4, epochs=1, verbose=0)
    checkpoint = sg.train.Checkpoint(model=both)
    seen, paths = [], []

    def handler():
        seen.append(both.get_weights())
        if len(seen) % 10 == 1:
            paths.append(checkpoint.save(tmp_path / "saved"))

    class UntilEnoughIsSeen(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            both.stop_training = len(seen) > 30

    deadline = time.monotonic() + 60
    with signals(handler, 0.005):
        while len(seen) <= 30 and time.monotonic() < deadline:
            both.fit(X, [Y, Y], batch_size=4, epochs=5, verbose=0, callbacks=[UntilEnoughIsSeen()])
    checkpoint.sync()
    assert len(seen) > 30
    for first, second in seen:
        np.testing.assert_array_equal(first, second)
    for path in paths:
        checkpoint.restore(path)
        np.testing.assert_array_equal(*both.get_weights())


def test_garbage_collections_during_a_step_see_its_state(strategy):
    """A signal handler may run in one: the arrays before or after the step are there."""
    model = make(strategy, dense(1, use_bias=False))
    model.fit(X, Y, batch_size=4, epochs=1, verbose=0)
    seen, before = [], gc.get_threshold()

    def look(phase, info):  # without JAX, which may crash in a collection on Python 3.11
        attempt = model_state._latest.get(model)
        if attempt is not None and attempt.running:
            seen.append(bool(attempt.finished) or not attempt._before[0][0].is_deleted())

    gc.callbacks.append(look)
    try:
        gc.set_threshold(1)
        model.fit(X, Y, batch_size=4, epochs=1, verbose=0)
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(look)
    assert len(seen) > 20
    assert all(seen)


def test_reads_in_a_handler_that_interrupts_the_first_run_of_a_program(strategy, monkeypatch):
    """JAX dispatches it in Python code, in which a handler may run."""
    model = make(strategy, dense(1, use_bias=False))
    seen, original = [], StepProgram._prepare
    model.fit(X[:4], Y[:4], batch_size=4, verbose=0)

    def profile(frame, event, _):
        if event in ("call", "return") and "/jax/" in frame.f_code.co_filename:
            sys.setprofile(None)
            seen.append(int(model.optimizer.iterations))
            sys.setprofile(profile)

    def prepare(*args):
        prepared = original(*args)
        sys.setprofile(profile)
        return prepared

    monkeypatch.setattr(StepProgram, "_prepare", prepare)
    try:
        model.fit(X[:8], Y[:8], batch_size=8, verbose=0)
    finally:
        sys.setprofile(None)
    assert len(seen) > 20
    assert seen == sorted(seen)
    assert set(seen) == {1, 2}


@pytest.fixture
def interrupt(monkeypatch):
    """Returns what has a handler interrupt each call of a method, as a signal might there."""

    def interrupt(owner, method, handler):
        original = getattr(owner, method)

        def interrupted(self, *args):
            handler()
            return original(self, *args)

        monkeypatch.setattr(owner, method, interrupted)

    return interrupt


# Before a step has begun, and when its program is about to be launched.
MOMENTS = [(StepFunction, "__call__"), (StepProgram, "_prepare")]


@pytest.mark.parametrize("moment", MOMENTS, ids=["before", "within"])
def test_a_save_at_any_moment_of_a_step_changes_nothing(strategy, tmp_path, interrupt, moment):
    expected = make(strategy, dense(3), dense(1), optimizer="adam")
    model = make(strategy, dense(3), dense(1), optimizer="adam")
    for trained in (expected, model):
        trained.fit(X, Y, batch_size=4, epochs=1, shuffle=False, verbose=0)
    checkpoint, saved = sg.train.Checkpoint(model=model, optimizer=model.optimizer), []
    history = expected.fit(X, Y, batch_size=4, epochs=2, shuffle=False, verbose=0).history
    interrupt(*moment, lambda: saved.append(checkpoint.save(tmp_path / "saved")))
    seen = model.fit(X, Y, batch_size=4, epochs=2, shuffle=False, verbose=0).history
    assert len(saved) == 8
    np.testing.assert_allclose(seen["loss"], history["loss"], rtol=1e-6)
    for weights, others in zip(model.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(weights, others, rtol=1e-6)
    checkpoint.restore(saved[-1])
    assert int(model.optimizer.iterations) == 11  # before the last of twelve steps


def test_what_a_handler_assigns_before_a_step_counts(strategy, interrupt):
    alone = make(strategy, dense(1, use_bias=False))
    alone.layers[0].kernel.assign(np.zeros((3, 1), np.float32))
    alone.fit(X[8:], Y[8:], batch_size=8, shuffle=False, verbose=0)
    model = make(strategy, dense(1, use_bias=False))
    reset = model.layers[0].kernel.assign
    interrupt(StepFunction, "__call__", lambda: reset(np.zeros((3, 1), np.float32)))
    model.fit(X, Y, batch_size=8, shuffle=False, verbose=0)
    np.testing.assert_allclose(model.get_weights(), alone.get_weights(), rtol=1e-6)


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.layers[0].kernel.assign(np.zeros((3, 1), np.float32)),
        lambda model: model.layers[0].kernel.assign_add(np.ones((3, 1), np.float32)),
        lambda model: model.fit(X, Y, verbose=0),
        lambda model: model.predict(X, verbose=0),
    ],
    ids=["assign", "assign_add", "fit", "predict"],
)
def test_a_handler_that_changes_a_model_within_a_step_is_told_so(strategy, interrupt, change):
    alone = make(strategy, dense(1, use_bias=False))
    alone.fit(X, Y, batch_size=8, shuffle=False, verbose=0)
    model = make(strategy, dense(1, use_bias=False))
    errors = []

    def handler():
        with pytest.raises(sg.errors.ContextError, match="signal handler") as error:
            change(model)
        errors.append(error)

    interrupt(StepProgram, "_prepare", handler)
    model.fit(X, Y, batch_size=8, shuffle=False, verbose=0)
    assert len(errors) == 2
    np.testing.assert_allclose(model.get_weights(), alone.get_weights(), rtol=1e-6)


def test_another_thread_reads_weights_while_a_model_is_trained(strategy):
    model = make(strategy, dense(1, use_bias=False))
    read, ended = [], threading.Event()

    def work():
        while not ended.is_set():
            read.append(model.get_weights()[0])

    class UntilRead(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            model.stop_training = len(read) > 100

    thread = threading.Thread(target=work)
    thread.start()
    try:
        model.fit(X, Y, batch_size=4, epochs=5000, verbose=0, callbacks=[UntilRead()])
    finally:
        ended.set()
        thread.join()
    assert len(read) > 100
    assert all(np.isfinite(weights).all() for weights in read)


def in_thread(work):
    """Runs ``work`` in another thread to its end, and raises what it raised."""
    errors = []

    def run():
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    if errors:
        raise errors[0]


# In a callback between two steps, and when the program of a step is about to be launched.
@pytest.mark.parametrize("moment", ["between", "within"])
def test_another_thread_saves_a_model_in_training(strategy, tmp_path, interrupt, moment):
    expected = make(strategy, dense(3), dense(1), optimizer="adam")
    model = make(strategy, dense(3), dense(1), optimizer="adam")
    for trained in (expected, model):
        trained.fit(X, Y, batch_size=4, epochs=1, shuffle=False, verbose=0)
    history = expected.fit(X, Y, batch_size=4, epochs=2, shuffle=False, verbose=0).history
    checkpoint, saved = sg.train.Checkpoint(model=model, optimizer=model.optimizer), []

    def save(*args, **kwargs):
        in_thread(lambda: saved.append(checkpoint.save(tmp_path / "saved")))

    callbacks = []
    if moment == "between":
        callbacks.append(keras.callbacks.LambdaCallback(on_train_batch_end=save))
    else:
        interrupt(StepProgram, "_prepare", save)
    seen = model.fit(
        X, Y, batch_size=4, epochs=2, shuffle=False, verbose=0, callbacks=callbacks
    ).history
    assert len(saved) == 8
    np.testing.assert_allclose(seen["loss"], history["loss"], rtol=1e-6)
    for weights, others in zip(model.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(weights, others, rtol=1e-6)
    checkpoint.restore(saved[-1])
    assert int(model.optimizer.iterations) == (12 if moment == "between" else 11)


@pytest.mark.parametrize("callbacks", [False, True], ids=["plain", "host callbacks"])
def test_saves_of_a_thread_beside_fit_are_never_torn(strategy, tmp_path, callbacks):
    """Both kernels are equal after each step; a save in the middle of one would show a difference."""

    class Look(keras.layers.Layer):
        def call(self, x):
            if callbacks:
                jax.debug.callback(lambda: None)
            return x

    with strategy.scope():
        inputs = keras.Input((3,))
        ends = [keras.layers.Dense(1, kernel_initializer="ones", use_bias=False) for _ in range(2)]
        model = keras.Model(inputs, [end(Look()(inputs)) for end in ends])
        model.compile("sgd", ["mse", "mse"])
    checkpoint = sg.train.Checkpoint(model=model, optimizer=model.optimizer)
    model.optimizer.build(model.trainable_variables)
    paths, ended, errors, counts = [], threading.Event(), [], [0]

    def work():
        try:
            while not ended.is_set():
                paths.append(checkpoint.save(tmp_path / "saved"))
        except BaseException as error:
            errors.append(error)

    class UntilSaved(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if (
                len(paths) > counts[-1]
            ):  # not while the step is compiled, of which saves see nothing
                counts.append(len(paths))
            model.stop_training = len(counts) > 10 or bool(errors)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        model.fit(X, [Y, Y], batch_size=4, epochs=5000, verbose=0, callbacks=[UntilSaved()])
    finally:
        ended.set()
        thread.join(60)
    assert not errors
    assert int(model.optimizer.iterations) % 4 == 0
    checkpoint.sync()
    steps = []
    for path in paths:
        checkpoint.restore(path)
        np.testing.assert_array_equal(*model.get_weights())
        steps.append(int(model.optimizer.iterations))
    assert steps == sorted(steps)
    assert len(set(steps)) > 3


@pytest.mark.parametrize("moment", ["between", "within"])
@pytest.mark.parametrize("change", ["assign", "restore", "function"])
def test_what_another_thread_changes_during_fit_counts(
    strategy, tmp_path, interrupt, moment, change
):
    """It waits for the end of the step that runs, and the next step begins with its value."""
    model = make(strategy, dense(1, use_bias=False))
    kernel, zeros = model.layers[0].kernel, np.zeros((3, 1), np.float32)
    checkpoint = sg.train.Checkpoint(kernel=kernel)
    before = kernel.numpy()
    kernel.assign(zeros)
    path = checkpoint.save(tmp_path / "zeros")
    kernel.assign(before)
    set_zero = sg.function(lambda: kernel.assign(zeros))
    changes = {
        "assign": lambda: kernel.assign(zeros),
        "restore": lambda: checkpoint.restore(path),
        "function": set_zero,
    }
    started, threads = threading.Event(), []

    def begin(*args, **kwargs):
        if not threads:
            threads.append(threading.Thread(target=lambda: (started.set(), changes[change]())))
            threads[0].start()
            assert started.wait(60)
            if moment == "between":
                threads[0].join(60)
                assert not threads[0].is_alive()

    seen = []

    class Zeroed(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if moment == "between":
                begin()
            seen.append(kernel.numpy())

        def on_epoch_end(self, epoch, logs=None):
            self.model.stop_training = not threads[0].is_alive()

    if moment == "within":
        interrupt(StepProgram, "_prepare", begin)
    model.fit(X[:4], Y[:4], batch_size=4, epochs=5000, verbose=0, callbacks=[Zeroed()])
    threads[0].join()
    seen.append(kernel.numpy())
    alone = make(strategy, dense(1, use_bias=False))
    alone.layers[0].kernel.assign(zeros)
    alone.fit(X[:4], Y[:4], batch_size=4, verbose=0)
    first = alone.layers[0].kernel.numpy()
    assert any(np.allclose(value, first, rtol=1e-6) or not value.any() for value in seen)


def test_compiled_functions_use_the_weights_of_the_last_step(strategy):
    """Also functions that were compiled before ``fit``, in callbacks and in other threads."""
    model = make(strategy, dense(1, use_bias=False))
    whole = sg.function(model)
    replicated = sg.function(lambda x: strategy.run(model, args=(x,)))

    def outputs():
        copies = strategy.experimental_local_results(replicated(X))
        return [np.asarray(output) for output in (whole(X), *copies)]

    outputs()
    seen = []

    def look(batch, logs):
        expected = X @ model.layers[0].kernel.numpy()
        seen.extend((output, expected) for output in outputs())
        in_thread(lambda: seen.extend((output, expected) for output in outputs()))

    callback = keras.callbacks.LambdaCallback(on_train_batch_end=look)
    for _ in range(2):
        model.fit(X, Y, batch_size=4, verbose=0, callbacks=[callback])
    assert len(seen) == 8 * 2 * 3
    for output, expected in seen:
        np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("call", ["fit", "evaluate", "predict", "train_on_batch"])
def test_another_thread_cannot_train_or_run_a_model_in_training(strategy, call):
    alone, model = (make(strategy, dense(1, use_bias=False)) for _ in range(2))
    history = alone.fit(X, Y, batch_size=8, epochs=2, shuffle=False, verbose=0).history
    data, verbose = ((X,) if call == "predict" else (X, Y)), {"verbose": 0}
    errors = []

    def work():
        with pytest.raises(sg.errors.ContextError, match="cannot train or run") as error:
            getattr(model, call)(*data, **(verbose if call != "train_on_batch" else {}))
        errors.append(error)

    class Try(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            thread = threading.Thread(target=lambda: (self.model.get_weights(), work()))
            thread.start()
            thread.join()

    seen = model.fit(
        X, Y, batch_size=8, epochs=2, shuffle=False, verbose=0, callbacks=[Try()]
    ).history
    assert len(errors) == 4
    np.testing.assert_allclose(seen["loss"], history["loss"], rtol=1e-6)


def test_interrupts_at_each_call_of_a_step(strategy):
    model = make(strategy, dense(1), optimizer="adam")
    model.train_on_batch(X, Y)
    files = ("/keras/model_state.py", "/keras/step_function.py", "/keras/step_program.py")

    def interrupt_call(number):
        numbers, reached = itertools.count(), False

        def profile(frame, event, _):
            nonlocal reached
            counts = event == "call" and frame.f_code.co_filename.endswith(files)
            if counts and next(numbers) == number:
                reached = True
                raise KeyboardInterrupt

        sys.setprofile(profile)
        try:
            model.train_on_batch(X, Y)
        except KeyboardInterrupt:
            pass
        finally:
            sys.setprofile(None)
        return reached

    number = 0
    while interrupt_call(number):
        assert not [call for call in ACTIVE_CALLS if call._model() is model]
        before = int(model.optimizer.iterations)
        assert all(np.isfinite(weights).all() for weights in model.get_weights())
        model.train_on_batch(X, Y)
        assert int(model.optimizer.iterations) == before + 1
        number += 1
    assert number > 20


def test_threads_that_evaluate_and_predict_take_turns(strategy):
    model = make(strategy, dense(1, use_bias=False))
    expected, errors = model.predict(X, verbose=0), []

    def work(number):
        try:
            for _ in range(5):
                if number:
                    np.testing.assert_allclose(model.predict(X, verbose=0), expected, rtol=1e-6)
                else:
                    model.test_on_batch(X, Y)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors
