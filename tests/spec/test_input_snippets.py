"""What the input snippets of the tf.distribute documentation do, with ``import stratagem as tf``."""

import jax.numpy as jnp
import numpy as np
import pytest

import stratagem as tf

DEVICES = ["CPU:0", "CPU:1", "CPU:2"]


@pytest.fixture
def strategy():
    return tf.distribute.MirroredStrategy(DEVICES[:2])


def parts(element):
    return [np.asarray(value).tolist() for value in element.values]


def test_distributed_dataset(strategy):
    dataset = tf.data.Dataset.from_tensor_slices([5.0, 6.0, 7.0, 8.0]).batch(2)
    dist_dataset = strategy.experimental_distribute_dataset(dataset)
    assert isinstance(dist_dataset, tf.distribute.DistributedDataset)
    assert [parts(x) for x in dist_dataset] == [[[5.0], [6.0]], [[7.0], [8.0]]]
    dataset_iterator = iter(dist_dataset)
    assert isinstance(dataset_iterator, tf.distribute.DistributedIterator)
    first = next(dataset_iterator)
    assert repr(first) == (
        "PerReplica:{\n  0: Array([5.], dtype=float32),\n  1: Array([6.], dtype=float32)\n}"
    )
    assert float(strategy.reduce(tf.distribute.ReduceOp.SUM, first, axis=0)) == 11.0


def test_run_over_a_distributed_dataset(strategy):
    dataset = tf.data.Dataset.from_tensor_slices([5.0, 6.0, 7.0, 8.0]).batch(2)
    dist_dataset = strategy.experimental_distribute_dataset(dataset)

    @tf.function
    def f(x):
        return x * 2.0

    results = [parts(strategy.run(f, args=(x,))) for x in dist_dataset]
    assert results == [[[10.0], [12.0]], [[14.0], [16.0]]]
    assert f.experimental_get_tracing_count() == 1


def test_datasets_from_a_function(strategy):
    def dataset_fn(input_context):
        global_batch_size = 4
        batch_size = input_context.get_per_replica_batch_size(global_batch_size)
        dataset = tf.data.Dataset.range(8).batch(global_batch_size)
        dataset = dataset.unbatch().batch(batch_size)
        return dataset.prefetch(2)

    dist_dataset = strategy.distribute_datasets_from_function(dataset_fn)
    assert [parts(x) for x in dist_dataset] == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]


@pytest.mark.parametrize(
    ("size", "batch", "replicas", "expected"),
    [
        (10, 4, 2, [[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[8], [9]]]),
        (8, 4, 3, [[[0, 1], [2, 3], []], [[4, 5], [6, 7], []]]),
        (10, 5, 3, [[[0, 1], [2, 3], [4]], [[5, 6], [7, 8], [9]]]),
    ],
)
def test_rebatching_examples(size, batch, replicas, expected):
    strategy = tf.distribute.MirroredStrategy(DEVICES[:replicas])
    dataset = tf.data.Dataset.range(size).batch(batch, drop_remainder=False)
    assert [parts(x) for x in strategy.experimental_distribute_dataset(dataset)] == expected


def test_auto_shard_options():
    dataset = tf.data.Dataset.range(16).batch(4)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    dataset = dataset.with_options(options)
    policy = dataset.options().experimental_distribute.auto_shard_policy
    assert policy is tf.data.experimental.AutoShardPolicy.DATA


def test_numpy_dataset(strategy):
    numpy_input = np.ones([10], dtype=np.float32)
    dataset = strategy.experimental_make_numpy_dataset(numpy_input)
    dist_dataset = strategy.experimental_distribute_dataset(dataset.batch(4))
    assert sum(float(strategy.reduce("SUM", x, axis=0)) for x in dist_dataset) == 10


def test_manual_sharding_in_a_dataset_function(strategy):
    global_batch_size = 4

    def dataset_fn(input_context):
        batch_size = input_context.get_per_replica_batch_size(global_batch_size)
        d = tf.data.Dataset.from_tensors([[1.0]]).repeat().batch(batch_size)
        return d.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)

    inputs = strategy.experimental_distribute_datasets_from_function(dataset_fn)
    for batch in inputs:
        replica_results = strategy.experimental_run_v2(lambda x: jnp.sum(x), args=(batch,))
        break
    assert [float(value) for value in replica_results.values] == [2.0, 2.0]


def test_files_are_distributed(strategy, tmp_path):
    paths = []
    for name in ("1.tfr", "2.tfr"):
        paths.append(tmp_path / name)
        with tf.io.TFRecordWriter(paths[-1]) as writer:
            for record in (b"a", b"bb"):
                writer.write(name.encode() + record)
    dataset = tf.data.TFRecordDataset(paths).map(lambda record: np.int32(len(record))).batch(2)
    lengths = [parts(x) for x in strategy.experimental_distribute_dataset(dataset)]
    assert lengths == [[[6], [7]], [[6], [7]]]


def test_the_training_loop_of_the_overview(strategy):
    with strategy.scope():

        @tf.function
        def distribute_train_epoch(dataset):
            def replica_fn(input):
                return jnp.sum(input)

            total_result = 0
            for x in dataset:
                per_replica_result = strategy.experimental_run_v2(replica_fn, args=(x,))
                total_result += strategy.reduce(
                    tf.distribute.ReduceOp.SUM, per_replica_result, axis=None
                )
            return total_result

        dataset = tf.data.Dataset.range(10).batch(4)
        dist_dataset = strategy.experimental_distribute_dataset(dataset)
        for _ in range(2):
            train_result = distribute_train_epoch(dist_dataset)
    assert int(train_result) == 45


def test_cluster_resolver_and_partitioners():
    resolvers = tf.distribute.cluster_resolver
    spec = tf.train.ClusterSpec(
        {
            "ps": ["localhost:2222", "localhost:2223"],
            "worker": ["localhost:2224", "localhost:2225", "localhost:2226"],
        }
    )
    resolver = resolvers.SimpleClusterResolver(spec, task_type="worker", task_id=0)
    assert (resolver.task_type, resolver.task_id) == ("worker", 0)
    partitioners = tf.distribute.experimental.partitioners
    assert partitioners is tf.distribute.partitioners
    shape = tf.TensorShape([10, 3])
    assert partitioners.FixedShardsPartitioner(num_shards=2)(shape, tf.float32, axis=0) == [2, 1]
    assert partitioners.FixedShardsPartitioner(num_shards=2)(shape, tf.float32, axis=1) == [1, 2]
    minimum = partitioners.MinSizePartitioner(min_shard_bytes=24, max_shards=4)
    assert minimum(shape, tf.float32, axis=0) == [4, 1]
    minimum = partitioners.MinSizePartitioner(min_shard_bytes=24, max_shards=8)
    assert minimum(shape, tf.float32, axis=0) == [5, 1]
