"""Keras' ``fit``, ``evaluate`` and ``predict`` in two real workers: as on one device."""

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from task_functions import task

import stratagem as sg
from stratagem._src.telemetry.measurement.recorder import begin_recording, end_recording
from stratagem.testing import run_cluster

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.usefixtures("mark"),
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]

keras = sg.keras

# The last batch of 8 has 5 rows, which two workers cannot share.
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(21, 3)).astype(np.float32)
Y = (X @ np.array([[1.0], [2.0], [3.0]]) + 0.5).astype(np.float32)


def make_strategy():
    options = sg.distribute.experimental.CommunicationOptions(timeout_seconds=30)
    return sg.distribute.MultiWorkerMirroredStrategy(communication_options=options)


def make_model(strategy, *, seed=7):
    keras.utils.set_random_seed(seed)
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((3,)),
                keras.layers.Dense(4, use_bias=False),
                keras.layers.BatchNormalization(),
                keras.layers.Dropout(0.5),
                keras.layers.Dense(1),
            ]
        )
        model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse", metrics=["mae"])
    return model


def listed(numbers):
    return jax.tree.map(lambda leaf: np.asarray(leaf).tolist(), numbers)


def short_training(strategy):
    """Trains with arrays in an order that must be the leader's, and goes on with what it draws."""
    model = make_model(strategy)
    if strategy is not None and task()[1] == 1:
        np.random.seed(99)
    trained = {
        "history": model.fit(X, Y, batch_size=8, epochs=2, verbose=0).history,
        "predicted": model.predict(X[:16], batch_size=8, verbose=0),
        "weights": model.get_weights(),
        "slots": [variable.numpy() for variable in model.optimizer.variables],
    }
    keras.utils.set_random_seed(11)
    trained["again"] = model.fit(X, Y, batch_size=8, epochs=2, verbose=0).history
    trained["by batch"] = model.fit(X, Y, batch_size=8, verbose=0, shuffle="batch").history
    drawn = np.random.random((16, 3)), np.random.random((16, 1))
    trained["drawn"] = drawn
    trained["evaluated"] = model.evaluate(*drawn, batch_size=8, verbose=0)
    return trained


def long_training(strategy):
    """Trains with arrays and a dataset, and does all else that a model can do."""
    model = make_model(strategy)
    dataset = sg.data.Dataset.from_tensor_slices((X, Y)).batch(8)
    return {
        "history": model.fit(X, Y, batch_size=8, verbose=0, validation_split=0.25).history,
        "fed": model.fit(dataset, verbose=0, shuffle=False).history,
        "evaluated": model.evaluate(X, Y, batch_size=8, verbose=0),
        "predicted": model.predict(X, batch_size=8, verbose=0),
        "predicted_fed": model.predict(dataset, verbose=0),
        "trained": model.train_on_batch(X[:8], Y[:8]),
        "tested": model.test_on_batch(X[:7], Y[:7]),
        "predicted_on_batch": model.predict_on_batch(X[:7]),
        "weights": model.get_weights(),
    }


def eager_training(strategy):
    model = make_model(strategy)
    model.compile("sgd", "mse", run_eagerly=True)
    return {
        "history": model.fit(X, Y, batch_size=8, verbose=0).history,
        "predicted": model.predict(X[:5], verbose=0),
        "weights": model.get_weights(),
    }


def other_data(strategy):
    """Returns the errors of calls whose data differ between the workers."""
    model, worker = make_model(strategy), task()[1]
    errors = []

    def attempt(call):
        try:
            call()
        except sg.errors.ReplicaMismatchError as error:
            errors.append(str(error))

    shuffled = np.random.default_rng(worker).permutation(Y)
    attempt(lambda: model.fit({"dense": X}, shuffled, batch_size=8, verbose=0))
    attempt(lambda: model.evaluate(X[: 16 + worker], Y[: 16 + worker], verbose=0))
    attempt(lambda: model.predict(X + worker, verbose=0))

    def generated():
        for step in range(7):
            yield X[:8], Y[:8] + (step == 5) * worker  # after the comparison of batch 4

    attempt(lambda: model.fit(generated(), verbose=0))
    attempt(lambda: model.train_on_batch(X[:8], Y[:8] + worker))
    return errors


SAVE_ALONE = """
import sys, numpy as np, stratagem as sg
model = sg.keras.Sequential([sg.keras.Input((3,)), sg.keras.layers.Dense(1)])
model.compile("sgd", "mse")
saving = sg.keras.callbacks.OrbaxCheckpoint(sys.argv[1])
model.fit(np.ones((4, 3)), np.ones((4, 1)), verbose=0, callbacks=[saving])
"""


class Look(keras.callbacks.Callback):
    """Looks at weights and metrics after each step, on one worker alone."""

    def on_train_batch_end(self, batch, logs=None):
        assert np.isfinite(self.model.get_weights()[0]).all()
        assert float(self.model.metrics[0].result()) == pytest.approx(logs["loss"], rel=1e-5)


def save_by_leader(strategy, folder):
    """Trains while callbacks of the leader alone use the model between the steps."""
    model = make_model(strategy)
    path = os.path.join(folder, "{batch}.weights.h5")
    callbacks = [keras.callbacks.ModelCheckpoint(path, save_weights_only=True, save_freq=1)]
    if task()[1] == 0:
        callbacks.append(Look())
    return model.fit(X, Y, batch_size=8, epochs=2, verbose=0, callbacks=callbacks).history


def save_by_orbax(strategy, folder):
    """Returns whether checkpoints of Keras by Orbax, also those of one process, are what was saved."""
    with strategy.scope():
        inputs = keras.Input((3,))
        model = keras.Model(inputs, keras.layers.Dense(1, name="only")(inputs))
        model.compile("adam", "mse", metrics=["mae"])
    saving = keras.callbacks.OrbaxCheckpoint(f"{folder}/workers")
    model.fit(X, Y, batch_size=8, epochs=2, verbose=0, callbacks=[saving])
    with strategy.scope():
        loaded = keras.saving.load_model(f"{folder}/workers")
        if os.path.exists(f"{folder}/alone"):
            keras.saving.load_model(f"{folder}/alone")
    return [
        sorted(os.listdir(f"{folder}/workers")),
        int(loaded.optimizer.iterations),
        listed(model.get_weights()) == listed(loaded.get_weights()),
        loaded.fit(X, Y, verbose=0, shuffle=False).history
        == model.fit(X, Y, verbose=0, shuffle=False).history,
    ]


def in_worker(train, folder):
    """Trains, gives workers other data, and saves if there is a folder."""
    recorder = begin_recording()
    try:
        strategy = make_strategy()
        trained = listed(train(strategy)), recorder.take().examples
        if train is not short_training:
            return (*trained, None, None)
        if folder is None:
            return (*trained, other_data(strategy), None)
        undisturbed = make_model(strategy).fit(X, Y, batch_size=8, epochs=2, verbose=0).history
        assert save_by_leader(strategy, folder) == undisturbed
        return (*trained, other_data(strategy), save_by_orbax(strategy, folder))
    finally:
        end_recording()


@pytest.mark.parametrize(
    ("train", "devices", "saves"),
    [
        pytest.param(short_training, 1, False, id="short"),
        pytest.param(short_training, 1, True, id="short_and_saved", marks=pytest.mark.slow),
        pytest.param(short_training, 2, True, id="short_on_two_devices", marks=pytest.mark.slow),
        pytest.param(long_training, 1, True, id="long", marks=pytest.mark.slow),
        pytest.param(eager_training, 1, True, id="eager", marks=pytest.mark.slow),
    ],
)
def test_two_workers_are_as_one_device(train, devices, saves, tmp_path):
    if devices == 2:  # Orbax leaves a thread behind
        subprocess.run([sys.executable, "-c", SAVE_ALONE, str(tmp_path / "alone")], check=True)
    (first, examples, errors, saved), (second, others, _, saved_by_second) = run_cluster(
        in_worker,
        workers=2,
        args=(train, str(tmp_path) if saves else None),
        devices_per_worker=devices,
        timeout=150,
    )
    assert first == second
    assert saved == saved_by_second
    if errors is not None:
        in_fit, in_evaluate, in_predict, in_generator, on_batch = errors
        assert "but y of worker 1 has the leader's shape but different values." in in_fit
        assert "x of worker 1 has shape (17, 3) and dtype float32, and the leader's" in in_evaluate
        assert "x of worker 1 has the leader's shape" in in_predict
        assert "batch 5 of worker 1 differs from the leader's in y." in in_generator
        assert "batch 0 of worker 1 differs from the leader's in y." in on_batch
        assert saved == ([["1"], 6, True, True] if saves else None)
    assert min(examples, others) > 0  # of a job that is observed
    expected = listed(train(None))
    jax.tree.map(
        lambda one, other: np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-5),
        expected,
        first,
    )


def write_and_restore(folder):
    """Trains, is interrupted, and goes on; returns what was printed and which epochs were trained."""
    worker = task()[1]
    strategy = make_strategy()

    class Interrupt(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 1:
                raise KeyboardInterrupt

    class Stop(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 3 and worker == 1:
                self.model.stop_training = True

    # Each worker has a folder of its own, so that what another writes is seen, and so is what it reads.
    own = os.path.join(folder, str(worker))
    os.mkdir(own)

    def callbacks(*others):
        return [
            keras.callbacks.BackupAndRestore(os.path.join(own, "backup")),
            keras.callbacks.ModelCheckpoint(os.path.join(own, "best.keras"), monitor="loss"),
            keras.callbacks.CSVLogger(os.path.join(own, "log.csv"), append=True),
            *others,
        ]

    printed = io.StringIO()
    model = make_model(strategy)
    with contextlib.redirect_stdout(printed):
        with contextlib.suppress(KeyboardInterrupt):
            model.fit(X, Y, batch_size=8, epochs=9, callbacks=callbacks(Interrupt()))
        interrupted = listed(model.get_weights())
        again = make_model(strategy, seed=3)
        history = again.fit(X, Y, batch_size=8, epochs=9, callbacks=callbacks(Stop()))
    return {
        "printed": printed.getvalue(),
        "files": sorted(os.listdir(own)),
        "interrupted": interrupted,
        "epochs": history.epoch,
        "weights": listed(again.get_weights()),
    }


def noisy_training(strategy):
    """Trains and predicts with layers that draw from ``tf.random``; the workers have other seeds."""
    sg.random.set_seed(0 if strategy is None else task()[1])

    class Noise(keras.layers.Layer):
        def call(self, x):
            return x + sg.random.normal(sg.shape(x)) + sg.random.normal([], seed=4)

    with contextlib.nullcontext() if strategy is None else strategy.scope():
        layers = [keras.Input((3,)), Noise(), keras.layers.Dense(1, kernel_initializer="ones")]
        model = keras.Sequential(layers)
        model.compile(keras.optimizers.SGD(0.05), "mse")
    history = model.fit(X, Y, batch_size=8, epochs=2, shuffle=False, verbose=0).history
    return listed([history, model.predict(X, batch_size=8, verbose=0), model.get_weights()])


def noisy_in_worker():
    return noisy_training(make_strategy())


@pytest.mark.slow
def test_workers_draw_the_same_random_numbers_whatever_their_seeds():
    first, second = run_cluster(noisy_in_worker, workers=2, timeout=150)
    assert first == second
    # The leader's seed decides.
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4), first, noisy_training(None)
    )


@pytest.mark.slow
def test_the_leader_prints_writes_and_restores_for_all(tmp_path):
    first, second = run_cluster(write_and_restore, workers=2, args=(str(tmp_path),), timeout=150)
    assert "loss" in first["printed"]
    assert second["printed"] == ""
    assert first["files"] == ["best.keras", "log.csv"]
    assert second["files"] == []
    assert first["epochs"] == second["epochs"] == [2, 3]
    assert first["interrupted"] == second["interrupted"]
    assert first["weights"] == second["weights"]


def disagree():
    """Returns the errors of trainings whose workers do not do the same."""
    worker = task()[1]
    strategy = make_strategy()
    model = make_model(strategy)
    weights = model.get_weights()
    errors = []

    def attempt(call):
        try:
            call()
        except Exception as error:
            errors.append(f"{type(error).__name__}: {error}")

    class Batches(sg.keras.utils.PyDataset):
        def __len__(self):
            return 1

        def __getitem__(self, index):
            return X[:4], Y[:4]

    attempt(lambda: model.fit(Batches(), verbose=0))
    model.set_weights([weight + worker for weight in weights])
    attempt(lambda: model.fit(X, Y, batch_size=8, verbose=0))
    model.set_weights(weights)
    rows = 16 if worker == 0 else 8
    attempt(lambda: model.fit(X[:rows], Y[:rows], batch_size=8, verbose=0))
    return errors, [bool(np.isfinite(weight).all()) for weight in model.get_weights()]


@pytest.mark.slow
def test_workers_that_do_not_do_the_same_are_told():
    results = run_cluster(disagree, workers=2, timeout=150)
    for errors, finite in results:
        order, weights, steps = errors
        assert "shuffle=False" in order
        assert weights.startswith(
            "ReplicaMismatchError: Every worker must begin with the same weights"
        )
        assert steps.startswith(("ReplicaMismatchError", "UnavailableError"))
        assert all(finite)


@pytest.mark.slow
def test_a_worker_that_is_lost_is_named_and_the_others_keep_their_weights(workers):
    some = workers(2, script=Path(__file__).with_name("keras_worker_that_dies.py"))
    code, outcome = some.outcome(0, timeout=120)
    assert code == 0
    assert f"{some.name(1)} is gone" in outcome["text"]
    assert outcome["steps"] == 3
    assert outcome["kept"]
