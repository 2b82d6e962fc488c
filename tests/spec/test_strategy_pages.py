"""The code blocks that the pages of the strategies share, in their order, on each of these strategies.

The pages are those of ``Strategy``, ``experimental.MultiWorkerMirroredStrategy`` and
``experimental.TPUStrategy``.
``documented_output.py`` says what differs. Blocks that only give a signature are in ``names.txt``.
"""

import jax.numpy as jnp
import numpy as np
import pytest

import stratagem as tf

EPOCHS = 2


def of_strategy():
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def of_multi_worker_mirrored_strategy():
    return tf.distribute.experimental.MultiWorkerMirroredStrategy(
        communication=tf.distribute.experimental.CollectiveCommunication.AUTO
    )


def of_tpu_strategy():
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local", platform="cpu")
    tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
    return tf.distribute.experimental.TPUStrategy(
        tpu_cluster_resolver=resolver, device_assignment=None
    )


PAGES = [of_strategy, of_multi_worker_mirrored_strategy, of_tpu_strategy]


@pytest.fixture(params=PAGES, ids=[page.__name__.removeprefix("of_") for page in PAGES])
def strategy(request):
    return request.param()


def test_training_loop(strategy):
    my_strategy = strategy
    dataset = tf.data.Dataset.range(10).batch(4)
    with my_strategy.scope():

        @tf.function
        def distribute_train_epoch(dataset):
            def replica_fn(input):
                return jnp.sum(input)

            total_result = 0
            for x in dataset:
                per_replica_result = my_strategy.experimental_run_v2(replica_fn, args=(x,))
                total_result += my_strategy.reduce(
                    tf.distribute.ReduceOp.SUM, per_replica_result, axis=None
                )
            return total_result

        dist_dataset = my_strategy.experimental_distribute_dataset(dataset)
        for _ in range(EPOCHS):
            train_result = distribute_train_epoch(dist_dataset)
    assert int(train_result) == sum(range(10))


def test_constructor(strategy):
    class Renamed(tf.distribute.Strategy):
        """A strategy is what it is given as ``extended``."""

    assert isinstance(strategy, tf.distribute.Strategy)
    renamed = Renamed(strategy.extended)
    assert renamed.num_replicas_in_sync == strategy.num_replicas_in_sync


def test_properties(strategy):
    assert isinstance(strategy.extended, tf.distribute.StrategyExtended)
    assert strategy.num_replicas_in_sync == len(strategy.extended.worker_devices)


def test_experimental_distribute_dataset(strategy, tmp_path):
    paths = [str(tmp_path / f"{number}.tfr") for number in (1, 2, 3, 4)]
    for path in paths:
        with tf.io.TFRecordWriter(path) as writer:
            for record in range(8):
                writer.write(str(record).encode())
    dataset = tf.data.TFRecordDataset(paths).map(lambda record: np.int32(record)).batch(8)
    totals = []

    def train_step(x):
        return jnp.sum(x)

    dist_dataset = strategy.experimental_distribute_dataset(dataset)
    for x in dist_dataset:
        result = strategy.experimental_run_v2(train_step, args=(x,))
        totals.append(int(strategy.reduce("SUM", result, axis=None)))
    assert totals == [sum(range(8))] * 4


def test_experimental_distribute_datasets_from_function(strategy):
    global_batch_size = 16

    def dataset_fn(input_context):
        batch_size = input_context.get_per_replica_batch_size(global_batch_size)
        d = tf.data.Dataset.from_tensors([[1.0]]).repeat().batch(batch_size)
        return d.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)

    inputs = strategy.experimental_distribute_datasets_from_function(dataset_fn)

    def replica_fn(batch):
        return jnp.sum(batch)

    for batch in inputs:
        replica_results = strategy.experimental_run_v2(replica_fn, args=(batch,))
        break
    results = strategy.experimental_local_results(replica_results)
    replicas = strategy.num_replicas_in_sync
    assert [float(result) for result in results] == [global_batch_size / replicas] * replicas


def test_experimental_local_results(strategy):
    with strategy.scope():
        v = tf.Variable(3.0)
    local = strategy.experimental_local_results(v)
    assert isinstance(local, tuple)
    assert [float(value) for value in local] == [3.0] * strategy.num_replicas_in_sync
    assert strategy.experimental_local_results(5) == (5,)


def test_experimental_make_numpy_dataset(strategy):
    numpy_input = np.ones([10], dtype=np.float32)
    dataset = strategy.experimental_make_numpy_dataset(numpy_input)
    assert [float(element) for element in dataset] == [1.0] * 10
    dist_dataset = strategy.experimental_distribute_dataset(dataset.batch(5))
    assert [float(strategy.reduce("SUM", x, axis=0)) for x in dist_dataset] == [5.0, 5.0]


def test_lists_of_numpy_arrays_are_stacked(strategy):
    dataset = strategy.experimental_make_numpy_dataset([np.zeros(3), np.ones(3)])
    assert [np.asarray(element).tolist() for element in dataset] == [[0.0] * 3, [1.0] * 3]


def test_experimental_run_v2(strategy):
    def fn(x, *, y):
        return {"sum": x + y, "id": tf.distribute.get_replica_context().replica_id_in_sync_group}

    merged = strategy.experimental_run_v2(fn, args=(1.0,), kwargs={"y": 2.0})
    ids = strategy.experimental_local_results(merged["id"])
    assert [int(value) for value in ids] == list(range(strategy.num_replicas_in_sync))
    assert float(strategy.experimental_local_results(merged["sum"])[0]) == 3.0


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_reduce(compiled):
    """A global batch of 8 on 2 replicas, then a last partial batch of 6."""
    strategy = of_strategy()

    def reduce(op, value, axis):
        def fn(value):
            return strategy.reduce(op, value, axis=axis)

        return (tf.function(fn) if compiled else fn)(value)

    whole = strategy.experimental_distribute_values_from_function(
        lambda ctx: np.arange(4.0, dtype=np.float32) + 4 * ctx.replica_id_in_sync_group
    )
    np.testing.assert_array_equal(reduce("SUM", whole, None), [0 + 4, 1 + 5, 2 + 6, 3 + 7])
    assert float(reduce("SUM", whole, 0)) == 0 + 1 + 2 + 3 + 4 + 5 + 6 + 7
    partial = strategy.experimental_distribute_values_from_function(
        lambda ctx: [np.arange(4.0), np.arange(4.0, 6.0)][ctx.replica_id_in_sync_group].astype("f")
    )
    assert float(reduce("MEAN", partial, 0)) == pytest.approx(15 / 6)
    with pytest.raises(ValueError, match="same shape"):
        reduce("SUM", partial, None)


def test_scope(strategy):
    assert not tf.distribute.in_cross_replica_context()
    with strategy.scope():
        assert tf.distribute.get_strategy() is strategy
        assert tf.distribute.in_cross_replica_context()
        v = tf.Variable(1.0)
    assert strategy.extended.variable_created_in_scope(v)
