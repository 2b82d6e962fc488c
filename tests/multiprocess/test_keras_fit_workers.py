"""Keras' ``fit``, ``evaluate`` and ``predict`` in two real workers: as on one device."""

import contextlib
import io
import os
from pathlib import Path

import jax
import numpy as np
import pytest
from task_functions import task

import stratagem as sg
from stratagem._src.measurement.recorder import begin_recording, end_recording
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
    """Trains with arrays in an order that must be the leader's."""
    model = make_model(strategy)
    if strategy is not None and task()[1] == 1:
        np.random.seed(99)
    return {
        "history": model.fit(X, Y, batch_size=8, epochs=2, verbose=0).history,
        "predicted": model.predict(X[:16], batch_size=8, verbose=0),
        "weights": model.get_weights(),
        "slots": [variable.numpy() for variable in model.optimizer.variables],
    }


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


def in_worker(train):
    recorder = begin_recording()
    try:
        return listed(train(make_strategy())), recorder.take().examples
    finally:
        end_recording()


@pytest.mark.parametrize(
    ("train", "devices"),
    [
        pytest.param(short_training, 1, id="short"),
        pytest.param(short_training, 2, id="short_on_two_devices", marks=pytest.mark.slow),
        pytest.param(long_training, 1, id="long", marks=pytest.mark.slow),
        pytest.param(eager_training, 1, id="eager", marks=pytest.mark.slow),
    ],
)
def test_two_workers_are_as_one_device(train, devices):
    (first, examples), (second, others) = run_cluster(
        in_worker, workers=2, args=(train,), devices_per_worker=devices, timeout=150
    )
    assert first == second
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
