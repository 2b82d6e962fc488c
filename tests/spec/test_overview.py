"""What the overview of ``tf.distribute`` says in words: its glossary and the names of two generations."""

import numpy as np

import stratagem as tf

DEVICES = ["CPU:0", "CPU:1"]


def test_data_parallelism_gives_each_replica_its_slice_of_the_input():
    strategy = tf.distribute.MirroredStrategy(DEVICES)
    dataset = tf.data.Dataset.from_tensor_slices(np.arange(4.0, dtype=np.float32)).batch(4)
    (batch,) = strategy.experimental_distribute_dataset(dataset)
    slices = strategy.experimental_local_results(strategy.run(lambda x: x, args=(batch,)))
    assert [np.asarray(value).tolist() for value in slices] == [[0.0, 1.0], [2.0, 3.0]]


def test_worker_and_parameter_devices_of_a_mirrored_strategy_are_the_same():
    extended = tf.distribute.MirroredStrategy(DEVICES).extended
    assert extended.worker_devices == extended.parameter_devices
    assert len(extended.worker_devices) == 2


def test_central_storage_puts_variables_on_one_device():
    assert tf.distribute.experimental.CentralStorageStrategy is tf.distribute.CentralStorageStrategy
    strategy = tf.distribute.experimental.CentralStorageStrategy(DEVICES, "CPU:0")
    with strategy.scope():
        v = tf.Variable(10.0, aggregation=tf.VariableAggregation.SUM)
    assert strategy.extended.parameter_devices == (v.device,)
    assert v.device != strategy.extended.worker_devices[1]
    strategy.run(
        lambda: v.assign_add(tf.distribute.get_replica_context().replica_id_in_sync_group + 1.0)
    )
    assert float(v) == 13


def test_mirrored_variables_get_the_same_update_on_every_device():
    strategy = tf.distribute.MirroredStrategy(DEVICES)
    with strategy.scope():
        v = tf.Variable(10.0, aggregation=tf.VariableAggregation.MEAN)
    strategy.run(
        lambda: v.assign_add(tf.distribute.get_replica_context().replica_id_in_sync_group + 1.0)
    )
    assert [float(copy) for copy in strategy.experimental_local_results(v)] == [11.5, 11.5]


def test_a_default_strategy_is_used_when_no_other_is_in_scope():
    default = tf.distribute.get_strategy()
    assert not tf.distribute.has_strategy()
    assert default.num_replicas_in_sync == 1
    assert float(default.run(lambda x: x + 1, args=(1.0,))) == 2.0
    assert int(tf.distribute.get_replica_context().replica_id_in_sync_group) == 0


def test_experimental_set_strategy():
    strategy = tf.distribute.MirroredStrategy(DEVICES)
    tf.distribute.experimental_set_strategy(strategy)
    try:
        assert tf.distribute.get_strategy() is strategy
    finally:
        tf.distribute.experimental_set_strategy(None)
    assert not tf.distribute.has_strategy()


def test_both_generations_of_communication_names():
    experimental = tf.distribute.experimental
    assert (
        experimental.CollectiveCommunication.AUTO is experimental.CommunicationImplementation.AUTO
    )
    assert {c.name for c in experimental.CollectiveCommunication} == {"AUTO", "RING", "NCCL"}


def test_both_places_of_partitioners():
    assert tf.distribute.experimental.partitioners is tf.distribute.partitioners


def test_reduce_ops_by_name():
    for name in ("sum", "Sum", "SUM", tf.distribute.ReduceOp.SUM):
        assert tf.distribute.ReduceOp(name) is tf.distribute.ReduceOp.SUM
