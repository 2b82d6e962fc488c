"""The TPU snippets of the tf.distribute documentation, with ``import stratagem as tf``.

They differ by ``platform="cpu"``, which has virtual CPU devices stand in for TPU cores, and by
``jax.numpy`` and ``tf.value_and_grad`` in place of TensorFlow's own operations.
"""

import jax.numpy as jnp
import numpy as np
import pytest

import stratagem as tf


@pytest.fixture
def resolver():
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local", platform="cpu")
    tf.config.experimental_connect_to_cluster(resolver)
    return resolver


@pytest.fixture
def strategy(resolver):
    tf.tpu.experimental.initialize_tpu_system(resolver)
    return tf.distribute.TPUStrategy(resolver)


def dataset_fn(ctx):
    x = np.random.default_rng(0).random((2, 5)).astype(np.float32)
    y = np.array([[0], [1]])
    dataset = tf.data.Dataset.from_tensor_slices((x, y))
    return dataset.repeat().batch(1, drop_remainder=True)


def test_custom_training_loop(strategy):
    with strategy.scope():
        weights = tf.Variable(jnp.zeros((5, 2)), aggregation=tf.VariableAggregation.SUM)

    iterator = iter(strategy.distribute_datasets_from_function(dataset_fn))

    @tf.function
    def train_step(iterator):
        def step_fn(inputs):
            features, labels = inputs

            def loss():
                return ((features @ weights)[0, labels[0, 0]] - 1.0) ** 2

            weights.assign_sub(0.01 * tf.value_and_grad(loss, weights)()[1])

        strategy.run(step_fn, args=(next(iterator),))

    train_step(iterator)
    assert weights.numpy().any()


def test_run_takes_distributed_values(strategy):
    @tf.function
    def run():
        def value_fn(value_context):
            return value_context.num_replicas_in_sync

        distributed_values = strategy.experimental_distribute_values_from_function(value_fn)

        def replica_fn(input):
            return input * 2

        return strategy.run(replica_fn, args=(distributed_values,))

    result = run()
    assert [int(x) for x in strategy.experimental_local_results(result)] == [16] * 8


def test_assign_to_a_logical_device(resolver):
    topology = tf.tpu.experimental.initialize_tpu_system(resolver)
    device_assignment = tf.tpu.experimental.DeviceAssignment.build(
        topology, computation_shape=[1, 1, 1, 2], num_replicas=1
    )
    strategy = tf.distribute.TPUStrategy(resolver, experimental_device_assignment=device_assignment)

    @tf.function
    def step_fn(inputs):
        features, _ = inputs
        output = jnp.add(features, features)
        return strategy.experimental_assign_to_logical_device(output, 0)

    iterator = iter(strategy.distribute_datasets_from_function(dataset_fn))
    output = strategy.run(step_fn, args=(next(iterator),))
    assert output.shape == (1, 5)


def test_split_to_logical_devices(resolver):
    topology = tf.tpu.experimental.initialize_tpu_system(resolver)
    device_assignment = tf.tpu.experimental.DeviceAssignment.build(
        topology, computation_shape=[1, 2, 2, 2], num_replicas=1
    )
    strategy = tf.distribute.TPUStrategy(
        resolver,
        experimental_device_assignment=device_assignment,
        experimental_spmd_xla_partitioning=True,
    )
    images = tf.data.Dataset.from_tensor_slices(np.ones((4, 8, 8, 3), np.float32)).batch(2)
    iterator = iter(strategy.experimental_distribute_dataset(images))

    @tf.function
    def step_fn(inputs):
        inputs = strategy.experimental_split_to_logical_devices(inputs, [1, 2, 4, 1])
        return jnp.mean(inputs, axis=(1, 2, 3))

    result = strategy.run(step_fn, args=(next(iterator),))
    assert result.tolist() == [1.0, 1.0]


def test_distribute_a_numpy_dataset(strategy):
    numpy_input = np.ones([10], dtype=np.float32)
    dataset = strategy.experimental_make_numpy_dataset(numpy_input)
    dist_dataset = strategy.experimental_distribute_dataset(dataset.batch(10))
    total = 0.0
    for x in dist_dataset:
        per_replica = strategy.experimental_run_v2(lambda x: x.sum(), args=(x,))
        total += float(strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica, axis=None))
    assert total == 10.0


def test_distribute_datasets_from_a_function(strategy):
    global_batch_size = 16

    def dataset_fn(input_context):
        batch_size = input_context.get_per_replica_batch_size(global_batch_size)
        d = tf.data.Dataset.from_tensors([[1.0]]).repeat().batch(batch_size)
        return d.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)

    inputs = strategy.experimental_distribute_datasets_from_function(dataset_fn)
    batch = next(iter(inputs))
    replica_results = strategy.experimental_run_v2(lambda x: x.sum(), args=(batch,))
    results = strategy.experimental_local_results(replica_results)
    assert [float(x) for x in results] == [2.0] * 8
