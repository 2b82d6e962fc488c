"""The stations of TensorFlow's tutorial "Distributed input"."""

import numpy as np
import pytest

import stratagem as tf


@pytest.fixture
def strategy():
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def local(strategy, value):
    """Returns the values of the replicas, as lists."""
    return [np.asarray(v).tolist() for v in strategy.experimental_local_results(value)]


def test_a_dataset_of_global_batches_is_divided(strategy):
    global_batch_size = 4
    dataset = tf.data.Dataset.from_tensors(([1.0], [1.0])).repeat(10).batch(global_batch_size)
    dist_dataset = strategy.experimental_distribute_dataset(dataset)
    features, labels = next(iter(dist_dataset))
    assert local(strategy, features) == local(strategy, labels) == [[[1.0]] * 2] * 2

    @tf.function
    def distributed_train_step(inputs):
        return strategy.run(lambda pair: pair[0] - 0.3 * pair[1], args=(inputs,))

    sizes = []
    for x in dist_dataset:
        values = strategy.experimental_local_results(distributed_train_step(x))
        sizes.append([len(value) for value in values])
    assert sizes == [[2, 2], [2, 2], [1, 1]]


@pytest.mark.parametrize(
    ("batch_size", "sizes"), [(6, [[3, 3], [2, 2]]), (5, [[3, 2], [3, 2]]), (10, [[5, 5]])]
)
def test_every_element_is_seen_once_whatever_the_batch(strategy, batch_size, sizes):
    dataset = tf.data.Dataset.range(10).batch(batch_size)
    batches = [local(strategy, x) for x in strategy.experimental_distribute_dataset(dataset)]
    assert [[len(part) for part in batch] for batch in batches] == sizes
    assert [number for batch in batches for part in batch for number in part] == list(range(10))


def test_sharding_policies_are_options_of_the_dataset(strategy):
    dataset = tf.data.Dataset.from_tensors(([1.0], [1.0])).repeat(64).batch(16)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    dataset = dataset.with_options(options)
    policy = dataset.options().experimental_distribute.auto_shard_policy
    assert policy is tf.data.experimental.AutoShardPolicy.DATA
    assert len(list(strategy.experimental_distribute_dataset(dataset))) == 4


def test_datasets_from_a_function_are_batched_for_a_replica(strategy):
    contexts = []

    def dataset_fn(input_context):
        contexts.append(input_context)
        batch_size = input_context.get_per_replica_batch_size(8)
        dataset = tf.data.Dataset.range(16).shard(
            input_context.num_input_pipelines, input_context.input_pipeline_id
        )
        return dataset.batch(batch_size).prefetch(2)

    dist_dataset = strategy.distribute_datasets_from_function(dataset_fn)
    batches = [local(strategy, x) for x in dist_dataset]
    assert batches == [[[0, 1, 2, 3], [4, 5, 6, 7]], [[8, 9, 10, 11], [12, 13, 14, 15]]]
    assert contexts[0].num_input_pipelines == 1
    assert contexts[0].input_pipeline_id == 0
    assert contexts[0].num_replicas_in_sync == 2


def test_prefetching_to_devices_can_be_left_out(strategy):
    options = tf.distribute.InputOptions(
        experimental_fetch_to_device=False, experimental_per_replica_buffer_size=1
    )
    dataset = tf.data.Dataset.range(8).batch(4)
    [first, _] = strategy.experimental_distribute_dataset(dataset, options)
    assert local(strategy, first) == [[0, 1], [2, 3]]


def test_iterators_with_a_number_of_steps(strategy):
    dataset = tf.data.Dataset.from_tensors(([1.0], [1.0])).repeat(100).batch(4)
    dist_dataset = strategy.experimental_distribute_dataset(dataset)

    @tf.function
    def replica_sum(inputs):
        parts = strategy.run(lambda pair: (pair[0] + pair[1]).sum(), args=(inputs,))
        return strategy.reduce("SUM", parts, axis=None)

    iterator = iter(dist_dataset)
    for _ in range(2):
        for _ in range(5):
            assert float(replica_sum(next(iterator))) == 8.0

    assert len(list(iterator)) == 15
    with pytest.raises(StopIteration):
        next(iterator)


def test_optionals_end_a_loop(strategy):
    dist_dataset = strategy.experimental_distribute_dataset(tf.data.Dataset.range(9).batch(4))
    iterator = iter(dist_dataset)

    @tf.function
    def step_or_end(iterator):
        optional = iterator.get_next_as_optional()
        if not optional.has_value():
            return None
        parts = strategy.run(lambda x: x.sum(), args=(optional.get_value(),))
        return strategy.reduce("SUM", parts, axis=None)

    sums = []
    while (total := step_or_end(iterator)) is not None:
        sums.append(int(total))
    assert sums == [0 + 1 + 2 + 3, 4 + 5 + 6 + 7, 8]


def test_the_element_spec_is_an_input_signature(strategy):
    dataset = tf.data.Dataset.from_tensors(([1.0], [2.0])).repeat(16).batch(4)
    dist_dataset = strategy.experimental_distribute_dataset(dataset)
    iterator = iter(dist_dataset)

    @tf.function(input_signature=[iterator.element_spec])
    def step(inputs):
        return strategy.run(lambda pair: pair[0] * pair[1], args=(inputs,))

    assert local(strategy, step(next(iterator))) == [[[2.0]] * 2] * 2
    assert step.experimental_get_tracing_count() == 1


def test_a_loop_inside_a_function(strategy):
    dist_dataset = strategy.experimental_distribute_dataset(tf.data.Dataset.range(16).batch(4))

    @tf.function
    def train(dataset):
        total = 0
        for x in dataset:
            total += strategy.reduce("SUM", strategy.run(lambda x: x * 2, args=(x,)), axis=0)
        return total

    assert int(train(dist_dataset)) == 2 * sum(range(16))


def test_values_from_a_function(strategy):
    def value_fn(ctx):
        return np.float32(ctx.replica_id_in_sync_group + 1)

    distributed = strategy.experimental_distribute_values_from_function(value_fn)
    result = strategy.run(lambda value: value * 3, args=(distributed,))
    assert local(strategy, result) == [3.0, 6.0]

    # Arrays of one's own, one for each replica.
    arrays = [np.full((2, 2), number, np.float32) for number in (1, 2)]
    distributed = strategy.experimental_distribute_values_from_function(
        lambda ctx: arrays[ctx.replica_id_in_sync_group]
    )
    total = strategy.reduce("SUM", strategy.run(lambda v: v, args=(distributed,)), axis=None)
    assert total.numpy().tolist() == [[3.0, 3.0], [3.0, 3.0]]


def test_generators_are_distributed_too(strategy):
    def batches():
        for number in range(2):
            yield np.full(4, number, np.float32)

    dataset = tf.data.Dataset.from_generator(
        batches, output_signature=tf.TensorSpec(shape=(4,), dtype=tf.float32)
    )
    dist_dataset = strategy.experimental_distribute_dataset(dataset)
    assert [local(strategy, x) for x in dist_dataset] == [[[0.0] * 2] * 2, [[1.0] * 2] * 2]


def test_several_datasets_in_one_step(strategy):
    pairs = tf.data.Dataset.zip((tf.data.Dataset.range(8), tf.data.Dataset.range(8, 16)))
    for one, other in strategy.experimental_distribute_dataset(pairs.batch(8)):
        difference = strategy.run(lambda a, b: b - a, args=(one, other))
        assert local(strategy, difference) == [[8] * 4] * 2


def test_preprocessing_with_a_layer_in_the_pipeline(strategy):
    normalization = tf.keras.layers.Normalization(mean=2.0, variance=4.0)
    dataset = tf.data.Dataset.from_tensor_slices(np.arange(8, dtype=np.float32)[:, None]).batch(4)
    dataset = dataset.map(lambda x: np.asarray(normalization(x)))
    batches = [local(strategy, x) for x in strategy.experimental_distribute_dataset(dataset)]
    assert np.ravel(batches).tolist() == [(x - 2) / 2 for x in range(8)]
