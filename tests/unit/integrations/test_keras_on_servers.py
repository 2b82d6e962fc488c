"""Keras variables, optimizers, embeddings and metrics on parameter servers, without workers."""

import numpy as np
import pytest

import stratagem as sg
from stratagem import keras
from stratagem._src.parameter_server.client.remote_variable import RemoteVariable
from stratagem._src.parameter_server.client.sharded_variable import ShardedVariable
from stratagem._src.parameter_server.protocol.serialization import pack, unpack


@pytest.fixture
def strategy():
    servers = [sg.distribute.Server({"ps": ["127.0.0.1:0"] * 2}, "ps", i) for i in range(2)]
    addresses = [server.target.removeprefix("grpc://") for server in servers]
    cluster = sg.train.ClusterSpec({"ps": addresses, "worker": ["127.0.0.1:1"]})
    strategy = sg.distribute.ParameterServerStrategy(
        sg.distribute.cluster_resolver.SimpleClusterResolver(cluster),
        sg.distribute.partitioners.MinSizePartitioner(min_shard_bytes=64, max_shards=2),
    )
    yield strategy
    strategy.client.close()
    for server in servers:
        server.shutdown()


def make_model():
    keras.utils.set_random_seed(3)
    return keras.Sequential(
        [
            keras.Input((2,), dtype="int32"),
            keras.layers.Embedding(12, 4),
            keras.layers.Flatten(),
            keras.layers.Dense(3, activation="tanh", bias_constraint=keras.constraints.NonNeg()),
            keras.layers.Dense(1),
        ]
    )


def train(model, optimizer, steps=4):
    rng = np.random.default_rng(0)
    for _ in range(steps):
        x = rng.integers(0, 12, (8, 2)).astype(np.int32)
        y = rng.normal(size=(8, 1)).astype(np.float32)
        with sg.GradientTape() as tape:
            loss = sg.reduce_mean((model(x) - y) ** 2)
        grads = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))


OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "clipnorm": lambda: keras.optimizers.SGD(0.1, clipnorm=0.1),
    "global_clipnorm": lambda: keras.optimizers.SGD(0.1, global_clipnorm=0.2),
    "clipvalue": lambda: keras.optimizers.SGD(0.1, clipvalue=0.01),
    "schedule": lambda: keras.optimizers.SGD(
        keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
    ),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1),
}
DENSE_OPTIMIZERS = {
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "adam": lambda: keras.optimizers.Adam(0.05),
    "adamw": lambda: keras.optimizers.AdamW(0.05, weight_decay=0.1),
    "nadam": lambda: keras.optimizers.Nadam(0.05),
    "ema": lambda: keras.optimizers.SGD(0.1, use_ema=True, ema_overwrite_frequency=2),
    "ftrl": lambda: keras.optimizers.Ftrl(0.1),
    "lion": lambda: keras.optimizers.Lion(0.01),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.01, centered=True, momentum=0.5),
    "adamax": lambda: keras.optimizers.Adamax(0.01),
    "adadelta": lambda: keras.optimizers.Adadelta(0.5),
}


def weights(*objects):
    return [np.asarray(v) for one in objects for v in one.variables]


def check_equal(strategy, make_model, make_optimizer):
    model, optimizer = make_model(), make_optimizer()
    train(model, optimizer)
    with strategy.scope():
        remote, remote_optimizer = make_model(), make_optimizer()
    train(remote, remote_optimizer)
    for mine, theirs in zip(
        weights(remote, remote_optimizer), weights(model, optimizer), strict=True
    ):
        np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_servers_take_the_steps_of_optimizers(strategy, name):
    check_equal(strategy, make_model, OPTIMIZERS[name])


def make_dense():
    keras.utils.set_random_seed(3)
    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(6), keras.layers.Dense(1)])


@pytest.mark.parametrize(
    "name",
    [
        n if n in ("adamw", "nadam", "ema") else pytest.param(n, marks=pytest.mark.slow)
        for n in DENSE_OPTIMIZERS
    ],
)
def test_slots_are_on_the_servers(strategy, name):
    check_equal(strategy, make_dense, DENSE_OPTIMIZERS[name])


def test_slots_are_beside_their_variables(strategy):
    with strategy.scope():
        model, optimizer = make_model(), keras.optimizers.Adam()
        optimizer.build(model.trainable_variables)
    table = model.layers[0].embeddings.twin
    assert isinstance(table, ShardedVariable)
    slots = [v.twin for v in optimizer.variables if tuple(v.shape) == tuple(table.shape)]
    assert len(slots) == 2
    for slot in slots:
        assert [(s.server, s.start, s.stop) for s in slot.shards] == [
            (s.server, s.start, s.stop) for s in table.shards
        ]


def test_only_the_rows_of_a_batch_are_read_and_updated(strategy):
    with strategy.scope():
        model, optimizer = make_model(), keras.optimizers.Adam(0.1)
    table = model.layers[0].embeddings
    before = np.asarray(table)
    reads = []
    original = RemoteVariable.read_requests

    def read_requests(variable, rows=None):
        reads.append((variable is table.twin, rows))
        return original(variable, rows)

    RemoteVariable.read_requests = read_requests
    try:
        x = np.array([[3, 7], [7, 11]], np.int32)
        with sg.GradientTape() as tape:
            loss = sg.reduce_sum(model(x) ** 2)
        grads = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(grads, model.trainable_variables)
    finally:
        RemoteVariable.read_requests = original
    assert isinstance(grads[0], sg.IndexedSlices)
    assert all(rows is not None for is_table, rows in reads if is_table)
    changed = np.flatnonzero((np.asarray(table) != before).any(axis=1))
    assert changed.tolist() == [3, 7, 11]


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: keras.optimizers.Adafactor(0.1), "Adafactor.*changes"),
        (lambda: keras.optimizers.Lamb(0.1), "Lamb computes a step of a full variable"),
        (lambda: keras.optimizers.SGD(gradient_accumulation_steps=2), "synchronized replicas"),
    ],
)
def test_what_servers_cannot_do_is_refused(strategy, make, match):
    with strategy.scope():
        model, optimizer = make_model(), make()
        optimizer.build(model.trainable_variables)
    before = weights(model)
    with pytest.raises(NotImplementedError, match=match):
        train(model, optimizer, steps=1)
    for mine, old in zip(weights(model), before, strict=True):
        np.testing.assert_array_equal(mine, old)


def test_a_constraint_that_needs_the_full_table_is_refused(strategy):
    with strategy.scope():
        layer = keras.layers.Embedding(8, 4, embeddings_constraint=keras.constraints.UnitNorm())
        layer.build(())
        optimizer = keras.optimizers.SGD()
    with pytest.raises(NotImplementedError, match="UnitNorm, needs the full variable"):
        optimizer.apply([np.zeros((8, 4), np.float32)], layer.trainable_variables)


METRICS = {
    "mean": (keras.metrics.Mean, 1),
    "accuracy": (keras.metrics.BinaryAccuracy, 2),
    "auc": (lambda: keras.metrics.AUC(num_thresholds=20), 2),
    "r2": (keras.metrics.R2Score, 2),
    "precision": (keras.metrics.Precision, 2),
}


@pytest.mark.parametrize("name", METRICS)
def test_metrics_add_to_their_state_on_the_servers(strategy, name):
    make, num_arguments = METRICS[name]
    rng = np.random.default_rng(0)
    batches = [
        ((rng.random((6, 1)) > 0.5).astype(np.float32), rng.random((6, 1)).astype(np.float32))
        for _ in range(3)
    ]
    expected = make()
    with strategy.scope():
        metric = make()
        if name == "r2":  # creates its state in the first update
            metric.update_state(*batches[0][:num_arguments])
            metric.reset_state()
    copies = [unpack(pack(metric)) for _ in batches]  # as several workers have it
    for batch, copy in zip(batches, copies, strict=True):
        expected.update_state(*batch[:num_arguments])
        copy.update_state(*batch[:num_arguments])
    np.testing.assert_allclose(metric.result(), expected.result(), rtol=1e-6)


def test_a_metric_whose_state_is_not_a_sum_is_refused(strategy):
    class Largest(keras.metrics.Metric):
        def __init__(self):
            super().__init__()
            self.largest = self.add_variable((), "zeros", name="largest")

        def update_state(self, values):
            self.largest.assign(keras.ops.maximum(self.largest, keras.ops.max(values)))

        def result(self):
            return self.largest

    with strategy.scope():
        metric = Largest()
    with pytest.raises(NotImplementedError, match="must add to its state"):
        metric.update_state(np.ones(3, np.float32))


def test_objects_are_sent_with_handles_of_their_variables(strategy):
    with strategy.scope():
        model = make_model()
        optimizer = keras.optimizers.AdamW(0.1)
        optimizer.exclude_from_weight_decay(var_names=["bias"])
        optimizer.build(model.trainable_variables)
    payload = pack((model, optimizer))
    assert payload.num_bytes < 60_000
    there, optimizer_there = unpack(payload)
    assert there is not model
    assert [v.twin for v in there.variables] == [v.twin for v in model.variables]
    again, _ = unpack(pack((model, optimizer)))
    assert again.variables[0] is there.variables[0]
    x = np.array([[1, 2]], np.int32)
    np.testing.assert_array_equal(there(x), model(x))
    optimizer_there.apply(
        [np.ones(v.shape, np.float32) for v in there.trainable_variables],
        there.trainable_variables,
    )
    assert int(optimizer.iterations.numpy()) == 1
    assert [optimizer_there._use_weight_decay(v) for v in there.trainable_variables] == [
        optimizer._use_weight_decay(v) for v in model.trainable_variables
    ]
