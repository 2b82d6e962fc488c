"""A worker with several devices, and what moves between it and the parameter servers."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from server_cluster import ServerCluster

import stratagem as sg

NUM_ROWS, WIDTH = 1000, 4


@pytest.fixture(scope="module")
def cluster():
    cluster = ServerCluster(workers=1, ps=2, devices=2)
    yield cluster
    cluster.close()


@pytest.fixture(scope="module")
def strategy(cluster):
    return cluster.strategy(
        variable_partitioner=sg.distribute.partitioners.FixedShardsPartitioner(2)
    )


@pytest.fixture(scope="module")
def coordinator(strategy):
    return sg.distribute.coordinator.ClusterCoordinator(strategy)


def test_replicas_on_every_device_of_a_worker(strategy, coordinator):
    with strategy.scope():
        total = sg.Variable(0.0, aggregation=sg.VariableAggregation.SUM)
    dataset = coordinator.create_per_worker_dataset(
        lambda: strategy.experimental_distribute_dataset(
            sg.data.Dataset.from_tensor_slices(np.arange(8, dtype=np.float32)).batch(4)
        )
    )

    @sg.function
    def step(iterator):
        def replica(x):
            total.assign_add(jnp.sum(x))
            return x * 2

        doubled = strategy.run(replica, args=(next(iterator),))
        return (
            strategy.num_replicas_in_sync,
            strategy.reduce("SUM", doubled, axis=0),
            strategy.gather(doubled, axis=0),
            total.read_value(),
        )

    iterator = iter(dataset)
    replicas, reduced, gathered, seen = coordinator.schedule(step, args=(iterator,)).fetch()
    assert replicas == 2
    assert float(reduced) == 12
    assert gathered.tolist() == [0, 2, 4, 6]
    assert float(seen) == float(total) == 6
    coordinator.schedule(step, args=(iterator,))
    coordinator.join()
    assert float(total) == 28


def test_a_variable_of_the_worker_in_compiled_steps(strategy, coordinator):
    with strategy.scope():
        seen = sg.Variable(0.0, aggregation=sg.VariableAggregation.SUM, per_worker_variable=True)
        total = sg.Variable(0.0, aggregation=sg.VariableAggregation.SUM)

    @sg.function
    def step(x):
        def replica():
            seen.assign_add(x)
            total.assign_add(x)
            return seen.read_value()

        strategy.run(replica)
        seen.assign_add(1.0)
        return seen.read_value()

    results = [coordinator.schedule(step, (np.float32(10),)).fetch() for _ in range(2)]
    assert results == [21.0, 42.0]
    assert [float(value) for value in seen.read_all()] == [42.0]
    assert float(total) == 40.0
    assert float(seen) == 0.0


def test_rows_are_trained_by_all_replicas(strategy, coordinator):
    start = np.random.default_rng(0).normal(size=(NUM_ROWS, WIDTH)).astype(np.float32)
    with strategy.scope():
        table = sg.Variable(start, aggregation=sg.VariableAggregation.SUM)
        weights = sg.Variable(np.ones(WIDTH, np.float32), aggregation=sg.VariableAggregation.SUM)
    assert len(table.variables) == 2
    ids = np.array([3, 900, 3, 501])

    @sg.function
    def step(ids):
        per_replica = strategy.experimental_distribute_values_from_function(
            lambda ctx: ids[2 * ctx.replica_id_in_sync_group : 2 * ctx.replica_id_in_sync_group + 2]
        )

        def replica(ids):
            loss = sg.value_and_grad(
                lambda: jnp.sum(table[ids] @ weights.value()), [table, weights]
            )
            value, (of_table, of_weights) = loss()
            table.scatter_sub(sg.IndexedSlices(of_table.values * 0.1, of_table.indices))
            weights.assign_sub(of_weights * 0.1)
            return value

        return strategy.reduce("SUM", strategy.run(replica, args=(per_replica,)))

    value = coordinator.schedule(step, args=(ids,)).fetch()
    expected, gradients = jax.value_and_grad(lambda t, w: jnp.sum(t[ids] @ w), argnums=(0, 1))(
        start, np.ones(WIDTH, np.float32)
    )
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    np.testing.assert_allclose(table.numpy(), start - 0.1 * gradients[0], rtol=1e-5)
    np.testing.assert_allclose(weights.numpy(), 1 - 0.1 * gradients[1], rtol=1e-5)


def test_several_optimizer_steps_in_one_function(strategy, coordinator):
    with strategy.scope():
        w = sg.Variable(np.zeros(4, np.float32))
        optimizer = sg.train.Optimizer(optax.adam(0.1))

    @sg.function
    def steps(target):
        losses = []
        for _ in range(3):
            loss = sg.value_and_grad(lambda: jnp.sum((w.value() - target) ** 2), w)
            value, gradient = loss()
            optimizer.apply_gradients([(gradient, w)])
            losses.append(value)
        return losses

    target = np.arange(4, dtype=np.float32)
    losses = coordinator.schedule(steps, args=(target,)).fetch()
    parameters, adam = jnp.zeros(4), optax.adam(0.1)
    state = adam.init(parameters)
    for loss in losses:
        np.testing.assert_allclose(loss, jnp.sum((parameters - target) ** 2), rtol=1e-4)
        updates, state = adam.update(2 * (parameters - target), state)
        parameters = parameters + updates
    np.testing.assert_allclose(w.numpy(), parameters, rtol=1e-4)


def test_variables_cannot_be_created_on_a_worker(strategy, coordinator):
    def create():
        with strategy.scope():
            sg.Variable(1.0)

    with pytest.raises(RuntimeError, match="Create variables in the coordinator"):
        coordinator.schedule(create).fetch()
    with pytest.raises(RuntimeError, match="Create variables in the coordinator"):
        coordinator.join()
