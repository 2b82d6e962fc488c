"""Keras ``fit`` on parameter servers, with real workers and servers, which are killed too."""

import gc
import os
import signal
import threading

import numpy as np
import pytest
from processes import poll
from server_cluster import ServerCluster

import stratagem as sg

keras = sg.keras

# Of Keras's own variables.
pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"
)

ROWS, EXAMPLES = 12, 64


@pytest.fixture(scope="module")
def cluster():
    cluster = ServerCluster(workers=1, ps=2)
    yield cluster
    gc.collect()
    cluster.close()


@pytest.fixture(scope="module")
def strategy(cluster):
    """One worker that runs one step after the other: the numbers are those of one process."""
    strategy = sharding(cluster)
    sg.distribute.coordinator.ClusterCoordinator(strategy, closures_per_worker=1)
    return strategy


def sharding(cluster):
    partitioner = sg.distribute.partitioners.MinSizePartitioner(min_shard_bytes=64, max_shards=2)
    return cluster.strategy(variable_partitioner=partitioner)


def make_data(seed=0):
    random = np.random.default_rng(seed)
    x = random.integers(0, ROWS, (EXAMPLES, 2)).astype(np.int32)
    return x, (x.sum(1, keepdims=True) / ROWS - 1.0).astype(np.float32)


def make_model(*layers, inputs=True):
    keras.utils.set_random_seed(3)
    first = [keras.Input((2,), dtype="int32")] if inputs else []
    embedding = keras.layers.Embedding(ROWS, 4)
    return keras.Sequential(
        [*first, embedding, keras.layers.Flatten(), *layers, keras.layers.Dense(1)]
    )


def scope_of(strategy):
    return strategy.scope() if strategy is not None else sg.distribute.get_strategy().scope()


def train(strategy, make=make_model, optimizer=None, **fit):
    with scope_of(strategy):
        model = make()
        model.compile(optimizer or "sgd", "mse", metrics=["mae"])
    x, y = make_data()
    given = {"x": x, "y": y, "batch_size": 8, "epochs": 3, "shuffle": False, "verbose": 0}
    history = model.fit(**{**given, **fit}).history
    return history, model


def check_equal(strategy, **options):
    (expected, alone), (history, model) = train(None, **options), train(strategy, **options)
    assert history.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(history[name], values, rtol=1e-4, err_msg=name)
    for mine, theirs in zip(model.variables, alone.variables, strict=True):
        np.testing.assert_allclose(np.asarray(mine), np.asarray(theirs), rtol=1e-4, atol=1e-6)
    return alone, model


def test_fit_evaluate_and_predict_compute_what_one_process_does(strategy):
    x, y = make_data(1)
    alone, model = check_equal(strategy, validation_data=(x, y))
    np.testing.assert_allclose(model.predict(x, verbose=0), alone.predict(x, verbose=0), rtol=1e-4)
    np.testing.assert_allclose(model.evaluate(x, y, verbose=0), alone.evaluate(x, y, verbose=0))
    assert int(model.optimizer.iterations.numpy()) == 24


def test_a_model_that_is_built_by_fit_with_slots_statistics_and_dropout(strategy):
    def make():
        return make_model(
            keras.layers.BatchNormalization(), keras.layers.Dropout(0.2, seed=1), inputs=False
        )

    x, y = make_data()
    data = sg.data.Dataset.from_tensor_slices((x, y)).batch(8)
    optimizer = {"optimizer": "adagrad"}  # whose step on some rows is the step on all
    _, model = check_equal(strategy, make=make, x=data, y=None, batch_size=None, **optimizer)
    table = model.layers[0].embeddings.twin
    slots = [v.twin for v in model.optimizer.variables if tuple(v.shape) == tuple(table.shape)]
    assert len(table.shards) == 2
    assert [[s.server for s in slot.shards] for slot in slots] == [[s.server for s in table.shards]]


def dataset_fn(context):
    random = np.random.default_rng(0)
    x = random.integers(0, ROWS, (EXAMPLES, 2)).astype(np.int32)
    y = (x.sum(1, keepdims=True) / ROWS - 1.0).astype(np.float32)
    return sg.data.Dataset.from_tensor_slices((x, y)).repeat().batch(8)


def data_of(kind, strategy):
    if kind == "creator":
        return keras.utils.experimental.DatasetCreator(dataset_fn)
    if kind == "function":
        return strategy.distribute_datasets_from_function(dataset_fn)
    return strategy.experimental_distribute_dataset(dataset_fn(None))


@pytest.mark.parametrize("kind", ["creator", "function", "dataset"])
def test_workers_create_their_own_datasets(strategy, kind):
    expected, _ = train(None)
    data = data_of(kind, strategy)
    history, model = train(strategy, x=data, y=None, batch_size=None, steps_per_epoch=8)
    np.testing.assert_allclose(history["loss"], expected["loss"], rtol=1e-4)
    x, y = make_data()
    loss = model.evaluate(data_of(kind, strategy), steps=8, verbose=0)[0]
    np.testing.assert_allclose(loss, model.evaluate(x, y, verbose=0)[0], rtol=1e-5)
    with pytest.raises(ValueError, match="steps_per_epoch"):
        model.fit(data, verbose=0)


def test_per_worker_datasets(strategy):
    coordinator = sg.distribute.coordinator.ClusterCoordinator(strategy, closures_per_worker=1)
    data = coordinator.create_per_worker_dataset(lambda: dataset_fn(None))
    with pytest.raises(ValueError, match="cannot read a per-worker dataset"):
        train(strategy, x=data, y=None, batch_size=None, steps_per_epoch=8)
    expected, _ = train(None, epochs=4)
    history, model = train(strategy, epochs=1)  # which builds everything
    options = {"epochs": 4, "initial_epoch": 1, "steps_per_epoch": 8, "verbose": 0}
    history = model.fit(data, **options).history
    np.testing.assert_allclose(history["loss"], expected["loss"][1:], rtol=1e-4)


class Gan(keras.Model):
    def __init__(self):
        super().__init__()
        self.d = keras.Sequential([keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)])
        self.g = keras.Sequential([keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(3)])
        self.loss_of_d = keras.metrics.Mean(name="d_loss")

    @property
    def metrics(self):
        return [self.loss_of_d]

    def compile(self, d_optimizer, g_optimizer, loss_fn):
        super().compile()
        self.d_optimizer, self.g_optimizer, self.loss_fn = d_optimizer, g_optimizer, loss_fn

    def train_step(self, real):
        count = real.shape[0]
        noise = real[:, :2] * 0.5
        labels = sg.concat([sg.ones((count, 1)), sg.zeros((count, 1))], axis=0)
        with sg.GradientTape() as tape:
            d_loss = self.loss_fn(labels, self.d(sg.concat([self.g(noise), real], axis=0)))
        weights = self.d.trainable_weights
        self.d_optimizer.apply_gradients(zip(tape.gradient(d_loss, weights), weights, strict=True))
        with sg.GradientTape() as tape:
            g_loss = self.loss_fn(sg.zeros((count, 1)), self.d(self.g(noise)))
        weights = self.g.trainable_weights
        self.g_optimizer.apply_gradients(zip(tape.gradient(g_loss, weights), weights, strict=True))
        self.loss_of_d.update_state(d_loss)
        return {"d_loss": self.loss_of_d.result()}


def test_a_model_with_its_own_step_and_optimizers(strategy):
    x = np.random.default_rng(0).normal(size=(32, 3)).astype(np.float32)

    def run(strategy):
        with scope_of(strategy):
            keras.utils.set_random_seed(2)
            model = Gan()
            loss = keras.losses.BinaryCrossentropy(from_logits=True)
            model.compile(keras.optimizers.Adam(0.01), keras.optimizers.SGD(0.1), loss)
        history = model.fit(x, batch_size=8, epochs=2, shuffle=False, verbose=0).history
        return history["d_loss"], [np.asarray(v) for v in model.variables]

    (expected, before), (losses, after) = run(None), run(strategy)
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
    for mine, theirs in zip(after, before, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-5)


def test_callbacks_run_at_the_ends_of_epochs_on_the_chief(strategy, tmp_path):
    seen = []
    epochs = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: seen.append((epoch, set(logs)))
    )
    path = str(tmp_path / "model.weights.h5")
    saving = keras.callbacks.ModelCheckpoint(path, save_weights_only=True)
    stopping = keras.callbacks.EarlyStopping("loss", mode="max", patience=1)
    _, model = train(strategy, callbacks=[epochs, saving, stopping])
    assert seen == [(i, {"loss", "mae"}) for i in range(2)]
    alone = make_model()
    alone.load_weights(path)
    np.testing.assert_array_equal(alone.get_weights()[0], model.get_weights()[0])


def test_what_needs_each_batch_is_refused(strategy):
    class EachBatch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            pass

    with pytest.raises(NotImplementedError, match="but EachBatch use batches"):
        train(strategy, callbacks=[EachBatch()])
    _, model = train(strategy, epochs=1)
    x, y = make_data()
    with pytest.raises(NotImplementedError, match="train_on_batch waits for one batch"):
        model.train_on_batch(x, y)

    class OfState(keras.Sequential):
        def train_step(self, state, data):
            return super().train_step(state, data)

    with strategy.scope():
        model = OfState([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    with pytest.raises(NotImplementedError, match=r"Write train_step\(self, data\)"):
        model.fit(x.astype(np.float32), y, verbose=0)


def test_an_error_of_a_step_is_raised_and_later_calls_work(strategy):
    class Failing(keras.Sequential):
        def train_step(self, data):
            x, _ = data
            if x.shape[0] == 3:
                raise KeyError("three rows")
            return super().train_step(data)

    with strategy.scope():
        model = Failing([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    x, y = (part.astype(np.float32) for part in make_data())
    with pytest.raises(KeyError, match="three rows"):
        model.fit(x[:11], y[:11], batch_size=8, epochs=2, verbose=0)
    assert len(model.fit(x, y, epochs=2, verbose=0).history["loss"]) == 2


class Waiting(keras.Sequential):
    def __init__(self, *args, gate, **kwargs):
        super().__init__(*args, **kwargs)
        self.gate = str(gate)

    def train_step(self, data):
        poll(lambda: os.path.exists(self.gate))
        return super().train_step(data)


def test_ctrl_c_cancels_the_steps_that_have_not_begun(strategy, tmp_path):
    gate = tmp_path / "gate"
    with strategy.scope():
        model = Waiting([keras.Input((2,)), keras.layers.Dense(1)], gate=gate)
        model.compile("sgd", "mse", run_eagerly=True)
    x, y = (part.astype(np.float32) for part in make_data())
    state = sg.distribute.coordinator.ClusterCoordinator(
        strategy, closures_per_worker=1
    )._dispatcher.state
    gate.touch()
    model.fit(x[:2], y[:2], verbose=0)  # which builds everything
    gate.unlink()

    def interrupt():
        poll(lambda: state.num_in_flight and state.num_queued)
        os.kill(os.getpid(), signal.SIGINT)
        poll(lambda: not state.num_queued)
        gate.touch()

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        model.fit(x, y, batch_size=2, epochs=9, verbose=0)
    thread.join()
    assert state.is_at_rest
    assert int(model.optimizer.iterations.numpy()) <= 3
    assert len(model.fit(x, y, epochs=2, verbose=0).history["loss"]) == 2


class KillInEpoch(keras.callbacks.Callback):
    """Kills tasks while the steps of an epoch run, and starts them again."""

    def __init__(self, cluster, epoch, tasks):
        super().__init__()
        self._cluster, self._epoch, self._tasks = cluster, epoch, tasks
        self._thread = None

    def on_epoch_begin(self, epoch, logs=None):
        if epoch != self._epoch:
            return
        state = sg.distribute.coordinator.ClusterCoordinator(
            self.model.optimizer.variables[0].strategy, **OPTIONS
        )._dispatcher.state
        before = state.num_returned

        def kill():
            poll(lambda: state.num_returned > before + 3)
            for task in self._tasks:
                self._cluster.kill(*task)
                self._cluster.start(*task)

        self._thread = threading.Thread(target=kill)
        self._thread.start()

    def on_epoch_end(self, epoch, logs=None):
        if epoch == self._epoch:
            self._thread.join()


class KillAtEpochEnd(keras.callbacks.Callback):
    """Reads the weights after a server is killed, which fails until it is back."""

    def __init__(self, cluster, epoch):
        super().__init__()
        self._cluster, self._epoch, self.calls = cluster, epoch, []

    def on_epoch_end(self, epoch, logs=None):
        self.calls.append(epoch)
        if epoch != self._epoch or self.calls.count(epoch) > 1:
            return
        model = self.model  # which waits for servers that are known to be lost
        self._cluster.kill("ps", 0)
        try:
            model.get_weights()
        finally:
            self._cluster.start("ps", 0)


@pytest.fixture
def killable():
    cluster = ServerCluster(workers=2, ps=2)
    yield cluster
    gc.collect()  # a coordinator that nobody holds does not wait for the servers
    cluster.close()


OPTIONS = {"patience": 90.0, "worker_timeout": 30.0}


def test_fit_continues_when_workers_and_servers_are_killed(killable, tmp_path):
    strategy = sharding(killable)
    coordinator = sg.distribute.coordinator.ClusterCoordinator(strategy, **OPTIONS)
    with strategy.scope():
        model = make_model(keras.layers.Dense(8, activation="tanh"))
        model.compile(keras.optimizers.Adam(0.001), "mse", metrics=["mae"])
    model.optimizer.build(model.trainable_variables)
    checkpoint = sg.train.Checkpoint(model=model, optimizer=model.optimizer)
    manager = sg.train.CheckpointManager(checkpoint, str(tmp_path), max_to_keep=2)
    coordinator.recover_servers_from(manager)

    def save(epoch, logs):
        manager.save()
        manager.sync()  # otherwise the loss of a server may take the checkpoint with it

    saving = keras.callbacks.LambdaCallback(on_epoch_end=save)
    x, y = (np.tile(part, (10, 1)) for part in make_data())
    losing_a_worker = KillInEpoch(killable, 1, [("worker", 0)])
    losing_a_server = KillInEpoch(killable, 3, [("ps", 1)])
    reading = KillAtEpochEnd(killable, 4)
    history = model.fit(
        x,
        y,
        batch_size=8,
        epochs=6,
        verbose=0,
        validation_data=(x, y),
        callbacks=[saving, losing_a_worker, losing_a_server, reading],
    ).history
    assert [recovery.servers for recovery in coordinator.recoveries] == [(1,), (0,)]
    assert reading.calls == [0, 1, 2, 3, 4, 4, 5]  # the hook that failed ran again
    assert all(np.isfinite(history["loss"]))
    assert history["val_loss"][-1] < 0.5 * history["val_loss"][0]
    # The worker's loss has cost no step: those that it had not returned ran on the other one.
    assert int(model.optimizer.iterations.numpy()) >= 5 * 80
    manager.sync()
    coordinator._dispatcher.stop()
    strategy.client.close()
