"""What the coordinator snippets of the tf.distribute documentation do, with ``import stratagem as tf``."""

import pytest

import stratagem as tf
from stratagem._src.cluster.held_ports import HeldPorts


class OneDeviceResolver(tf.distribute.cluster_resolver.SimpleClusterResolver):
    @property
    def local_device_ids(self):
        return (0,)


@pytest.fixture
def strategy():
    with HeldPorts(3) as ports:
        first, second, third = (f"127.0.0.1:{port}" for port in ports)
        spec = tf.train.ClusterSpec({"worker": [first, second], "ps": [third]})
        tasks = [("worker", 0), ("worker", 1), ("ps", 0)]
        servers = [tf.distribute.Server(spec, job, index) for job, index in tasks]
        strategy = tf.distribute.experimental.ParameterServerStrategy(
            cluster_resolver=OneDeviceResolver(spec)
        )
        yield strategy
        strategy._cluster_coordinator._dispatcher.stop()
        for server in servers:
            server.shutdown()


def test_create_per_worker_dataset(strategy):
    coordinator = tf.distribute.experimental.coordinator.ClusterCoordinator(strategy=strategy)

    @tf.function
    def worker_fn(iterator):
        return next(iterator)

    def per_worker_dataset_fn():
        return strategy.distribute_datasets_from_function(
            lambda x: tf.data.Dataset.from_tensor_slices([3] * 3)
        )

    per_worker_dataset = coordinator.create_per_worker_dataset(per_worker_dataset_fn)
    per_worker_iter = iter(per_worker_dataset)
    remote_value = coordinator.schedule(worker_fn, args=(per_worker_iter,))
    assert remote_value.fetch() == 3


def test_fetch(strategy):
    coordinator = tf.distribute.experimental.coordinator.ClusterCoordinator(strategy)

    def dataset_fn():
        return tf.data.Dataset.from_tensor_slices([1, 1, 1])

    with strategy.scope():
        v = tf.Variable(initial_value=0)

    @tf.function
    def worker_fn(iterator):
        def replica_fn(x):
            v.assign_add(x)
            return v.read_value()

        return strategy.run(replica_fn, args=(next(iterator),))

    distributed_dataset = coordinator.create_per_worker_dataset(dataset_fn)
    distributed_iterator = iter(distributed_dataset)
    result = coordinator.schedule(worker_fn, args=(distributed_iterator,))
    assert coordinator.fetch(result) == 1
