"""Custom training loops of Keras objects, scheduled on real workers with variables on real servers."""

import gc

import numpy as np
import optax
import pytest
from server_cluster import ServerCluster

import stratagem as sg

keras = sg.keras

X = np.array([[1, 2], [3, 4], [5, 6], [7, 8]], np.float32)
Y = np.array([[1], [0], [2], [1]], np.float32)
RATE, STEPS = 0.01, 6


@pytest.fixture(scope="module")
def cluster():
    cluster = ServerCluster(workers=2, ps=2)
    yield cluster
    gc.collect()
    cluster.close()


@pytest.fixture(scope="module", params=[None, 2], ids=["whole", "sharded"])
def strategy(request, cluster):
    shards = request.param
    partitioner = shards and sg.distribute.partitioners.FixedShardsPartitioner(shards)
    strategy = cluster.strategy(variable_partitioner=partitioner)
    sg.distribute.coordinator.ClusterCoordinator(strategy)
    return strategy


def make_model():
    return keras.Sequential(
        [keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones", name="dense")]
    )


def make_step(strategy, model, optimizer):
    @sg.function
    def step(x, y):
        def replica_fn(x, y):
            with sg.GradientTape() as tape:
                loss = sg.reduce_mean(sg.square(model(x, training=True) - y))
            variables = model.trainable_variables
            grads = tape.gradient(loss, variables)
            optimizer.apply_gradients(zip(grads, variables, strict=True))
            return loss

        return strategy.run(replica_fn, args=(x, y))

    return step


def momentum(value, grad, slots, _):
    slots[0] = 0.9 * slots[0] - RATE * grad
    return value + slots[0]


def adam(value, grad, slots, step):
    slots[0] = 0.9 * slots[0] + 0.1 * grad
    slots[1] = 0.999 * slots[1] + 0.001 * grad**2
    rate = RATE * np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
    return value - rate * slots[0] / (np.sqrt(slots[1]) + 1e-7)


def by_hand(update):
    """Returns the kernel and bias after the steps, computed in NumPy."""
    values = [np.ones((2, 1)), np.zeros(1)]
    slots = [[np.zeros_like(v), np.zeros_like(v)] for v in values]
    for step in range(1, STEPS + 1):
        error = X @ values[0] + values[1] - Y
        grads = [2 * X.T @ error / len(X), 2 * error.mean(axis=0)]
        values = [update(v, g, s, step) for v, g, s in zip(values, grads, slots, strict=True)]
    return values


OPTIMIZERS = {
    "momentum": (lambda: keras.optimizers.SGD(RATE, momentum=0.9), momentum, 1),
    "adam": (lambda: keras.optimizers.Adam(RATE), adam, 2),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_two_workers_share_the_slots_of_an_optimizer_that_is_not_built(strategy, name):
    make, update, num_slots = OPTIMIZERS[name]
    coordinator = sg.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        model, optimizer = make_model(), make()
    step = make_step(strategy, model, optimizer)
    # By turns: each worker must see the slots that the other has updated.
    for index in range(STEPS):
        coordinator.schedule(step, args=(X, Y), worker=index % 2)
        coordinator.join()
    for mine, expected in zip(model.get_weights(), by_hand(update), strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-4, atol=1e-6)
    assert int(optimizer.iterations) == STEPS
    others = ("iteration", "learning_rate")
    assert len([v for v in optimizer.variables if v.name not in others]) == 2 * num_slots


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_plain_variables_that_the_optimizer_is_built_with(strategy, name):
    make, update, num_slots = OPTIMIZERS[name]
    coordinator = sg.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        kernel, bias = (
            sg.Variable(np.ones((2, 1), np.float32)),
            sg.Variable(np.zeros(1, np.float32)),
        )
        variables = [*getattr(kernel, "variables", [kernel]), bias]
        optimizer = make()
        optimizer.build(variables)

    @sg.function
    def step(x, y):
        with sg.GradientTape() as tape:
            loss = sg.reduce_mean(sg.square(sg.matmul(x, kernel) + bias - y))
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    for index in range(STEPS):
        coordinator.schedule(step, args=(X, Y), worker=index % 2)
        coordinator.join()
    for mine, expected in zip([kernel, bias], by_hand(update), strict=True):
        np.testing.assert_allclose(mine.numpy(), expected, rtol=1e-4, atol=1e-6)
    others = ("iteration", "learning_rate")
    slots = [v for v in optimizer.variables if v.name not in others]
    assert len(slots) == len(variables) * num_slots


@pytest.mark.parametrize("kind", ["optax", "keras"])
def test_steps_on_rows_by_shards(cluster, kind):
    partitioner = sg.distribute.partitioners.FixedShardsPartitioner(2)
    strategy = cluster.strategy(variable_partitioner=partitioner)
    coordinator = sg.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        table, bias = sg.Variable(np.ones((10, 2), np.float32)), sg.Variable(0.0)
        variables = [*table.variables, bias]
        if kind == "keras":
            optimizer = keras.optimizers.SGD(1.0)
            optimizer.build(variables)
        else:
            optimizer = sg.train.Optimizer(optax.sgd, learning_rate=1.0)

    @sg.function
    def step(rows):
        with sg.GradientTape() as tape:
            loss = sg.reduce_sum(sg.nn.embedding_lookup(table, rows)) + bias
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    losses = []
    for index in range(2):
        losses.append(coordinator.schedule(step, args=(np.array([1, 7]),), worker=index).fetch())
        coordinator.join()
    assert losses == [4, -1]
    np.testing.assert_array_equal(table.numpy()[[1, 7]], -np.ones((2, 2)))
    assert table.numpy().sum() == 12
    assert float(bias) == -2


def test_an_optimizer_among_several_must_be_built(strategy):
    coordinator = sg.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        models = [make_model(), make_model()]
        optimizers = [keras.optimizers.Adam(RATE), keras.optimizers.Adam(RATE)]

    def make_steps():
        steps = [make_step(strategy, *pair) for pair in zip(models, optimizers, strict=True)]
        return lambda x, y: [step(x, y) for step in steps]

    coordinator.schedule(make_steps(), args=(X, Y))
    with pytest.raises(RuntimeError, match=r"optimizer\.build\(model\.trainable_variables\)"):
        coordinator.join()
    with strategy.scope():
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.build(model.trainable_variables)
    step = make_steps()
    for index in range(STEPS):
        coordinator.schedule(step, args=(X, Y), worker=index % 2)
        coordinator.join()
    for model in models:
        np.testing.assert_allclose(model.get_weights()[0], by_hand(adam)[0], rtol=1e-4)


def test_a_variable_that_the_optimizer_was_not_built_with_is_refused(strategy):
    coordinator = sg.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        model, other, optimizer = make_model(), make_model(), keras.optimizers.SGD(RATE)
        optimizer.build(model.trainable_variables)
    coordinator.schedule(make_step(strategy, other, optimizer), args=(X, Y))
    with pytest.raises(ValueError, match="Unknown variable"):
        coordinator.join()
    np.testing.assert_array_equal(other.get_weights()[0], np.ones((2, 1)))


class OfLayers(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, inputs):
        return self.dense(inputs)


@pytest.mark.parametrize("make", [lambda: keras.Sequential([keras.layers.Dense(1)]), OfLayers])
@pytest.mark.parametrize("in_replica", [True, False])
def test_a_model_must_be_built_before_workers_call_it(strategy, make, in_replica):
    coordinator = sg.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        model = make()

    def make_call():
        def call(x):
            return sg.reduce_sum(model(x))

        return sg.function(lambda x: strategy.run(call, args=(x,)) if in_replica else call(x))

    coordinator.schedule(make_call(), args=(X,))
    with pytest.raises(RuntimeError, match=r"must be built before.*call it once on example inputs"):
        coordinator.join()
    expected = np.asarray(model(X)).sum()
    value = coordinator.schedule(make_call(), args=(X,))
    np.testing.assert_allclose(value.fetch(), expected, rtol=1e-5)
