"""What the snippets of the tf.distribute documentation do, with ``import stratagem as tf``.

CPU devices stand in for GPUs and ``jax.numpy`` for TensorFlow's own operations; results are those the
documentation shows.
"""

import re

import jax.numpy as jnp
import numpy as np
import pytest

import stratagem as tf

DEVICES = ["CPU:0", "CPU:1"]


@pytest.fixture
def strategy():
    return tf.distribute.MirroredStrategy(DEVICES)


def same_text(value, expected):
    return re.sub(r"\s+", " ", repr(value)) == re.sub(r"\s+", " ", expected).strip()


def test_run_returns_distributed_values(strategy):
    @tf.function
    def f():
        ctx = tf.distribute.get_replica_context()
        return ctx.replica_id_in_sync_group

    result = strategy.run(f)
    assert isinstance(result, tf.distribute.DistributedValues)
    assert same_text(result, "PerReplica:{ 0: Array(0, dtype=int32), 1: Array(1, dtype=int32) }")


def test_run_takes_distributed_values(strategy):
    distributed_values = strategy.experimental_distribute_values_from_function(
        lambda ctx: np.array([5.0 + ctx.replica_id_in_sync_group], np.float32)
    )

    @tf.function
    def f(x):
        return x * 2.0

    result = strategy.run(f, args=(distributed_values,))
    assert same_text(
        result, "PerReplica:{ 0: Array([10.], dtype=float32), 1: Array([12.], dtype=float32) }"
    )


def test_reduce_distributed_values(strategy):
    distributed_values = strategy.experimental_distribute_values_from_function(
        lambda ctx: np.array([5.0 + ctx.replica_id_in_sync_group], np.float32)
    )
    result = strategy.reduce(tf.distribute.ReduceOp.SUM, distributed_values, axis=0)
    assert result.shape == ()
    assert float(result) == 11.0


def test_get_replica_context(strategy):
    default = tf.distribute.get_replica_context()
    assert isinstance(default, tf.distribute.ReplicaContext)
    with strategy.scope():
        assert tf.distribute.get_replica_context() is None

    def f():
        return tf.distribute.get_replica_context()

    contexts = strategy.run(f)
    assert isinstance(contexts, tf.distribute.PerReplica)
    assert [type(c) for c in contexts.values] == [tf.distribute.ReplicaContext] * 2
    assert contexts.values[0] is not contexts.values[1]


def test_get_strategy(strategy):
    default = tf.distribute.get_strategy()
    assert default is not strategy
    with strategy.scope():
        assert tf.distribute.get_strategy() is strategy
    assert tf.distribute.get_strategy() is default
    assert default.num_replicas_in_sync == 1
    assert int(tf.distribute.get_replica_context().replica_id_in_sync_group) == 0


def test_has_strategy(strategy):
    assert tf.distribute.has_strategy() is False
    with strategy.scope():
        assert tf.distribute.has_strategy() is True


def test_in_cross_replica_context(strategy):
    assert tf.distribute.in_cross_replica_context() is False
    with strategy.scope():
        assert tf.distribute.in_cross_replica_context() is True

    def f():
        return tf.distribute.in_cross_replica_context()

    assert strategy.run(f) is False


def test_mirrored_variable(strategy):
    with strategy.scope():
        x = tf.Variable(1.0)
    assert same_text(
        x,
        """MirroredVariable:{
          0: <sg.Variable 'Variable:0' shape=() dtype=float32, numpy=1.0>,
          1: <sg.Variable 'Variable/replica_1:0' shape=() dtype=float32, numpy=1.0>
        }""",
    )


def test_variables_inside_and_outside_of_the_scope(strategy):
    with strategy.scope():
        mirrored_variable = tf.Variable(1.0)
    regular_variable = tf.Variable(1.0)
    assert isinstance(mirrored_variable, tf.distribute.DistributedValues)
    assert not isinstance(regular_variable, tf.distribute.DistributedValues)
    assert repr(regular_variable) == "<sg.Variable 'Variable:0' shape=() dtype=float32, numpy=1.0>"


def test_one_device_strategy(capsys):
    strategy = tf.distribute.OneDeviceStrategy(device="/cpu:0")
    with strategy.scope():
        v = tf.Variable(1.0)
        print(v.device)

    def step_fn(x):
        return x * 2

    result = 0
    for i in range(10):
        result += strategy.run(step_fn, args=(i,))
    print(result)
    assert capsys.readouterr().out == "/job:localhost/replica:0/task:0/device:CPU:0\n90\n"


def test_replica_context_without_function(strategy):
    def f():
        replica_context = tf.distribute.get_replica_context()
        assert replica_context.num_replicas_in_sync == 2
        assert replica_context.strategy is strategy
        return replica_context.replica_id_in_sync_group

    assert same_text(
        strategy.run(f), "PerReplica:{ 0: Array(0, dtype=int32), 1: Array(1, dtype=int32) }"
    )


def test_gather(strategy):
    distributed_values = strategy.experimental_distribute_values_from_function(
        lambda _: tf.identity(tf.constant([[1], [2]]))
    )
    expected = np.array([[1], [2], [1], [2]], np.int32)
    gathered = strategy.gather(distributed_values, axis=0)
    assert gathered.dtype == tf.int32
    np.testing.assert_array_equal(gathered, expected)
    with strategy.scope():
        distributed_values = tf.Variable([[1], [2]])
    np.testing.assert_array_equal(strategy.gather(distributed_values, axis=0), expected)


@pytest.mark.parametrize("compiled", [False, True])
def test_reduce_as_described(strategy, compiled):
    """A global batch of 8 on 2 replicas, then a last partial batch of 6."""

    def reduce(op, value, axis):
        def fn(value):
            return strategy.reduce(op, value, axis=axis)

        return (tf.function(fn) if compiled else fn)(value)

    whole = strategy.experimental_distribute_values_from_function(
        lambda ctx: np.arange(4.0, dtype=np.float32) + 4 * ctx.replica_id_in_sync_group
    )
    np.testing.assert_array_equal(reduce("SUM", whole, None), [4, 6, 8, 10])
    assert float(reduce("SUM", whole, 0)) == 28
    partial = strategy.experimental_distribute_values_from_function(
        lambda ctx: [np.arange(4.0), np.arange(4.0, 6.0)][ctx.replica_id_in_sync_group].astype("f")
    )
    assert float(reduce("MEAN", partial, 0)) == pytest.approx(15 / 6)
    with pytest.raises(ValueError, match="same shape"):
        reduce("SUM", partial, None)


def test_the_training_loop_of_the_overview(strategy):
    with strategy.scope():
        total = tf.Variable(0.0, aggregation=tf.VariableAggregation.SUM)

        @tf.function
        def distribute_train_epoch(dataset):
            def replica_fn(input):
                total.assign_add(jnp.sum(input))
                return jnp.sum(input)

            total_result = 0
            for x in dataset:
                per_replica_result = strategy.experimental_run_v2(replica_fn, args=(x,))
                total_result += strategy.reduce(
                    tf.distribute.ReduceOp.SUM, per_replica_result, axis=None
                )
            return total_result

        dist_dataset = [
            strategy.experimental_distribute_values_from_function(
                lambda ctx, step=step: np.full(3, step + ctx.replica_id_in_sync_group, np.float32)
            )
            for step in range(4)
        ]
        for _ in range(2):
            train_result = distribute_train_epoch(dist_dataset)
    assert float(train_result) == sum(3 * (2 * step + 1) for step in range(4))
    assert float(total) == 2 * float(train_result)


def test_central_storage_under_both_names():
    assert tf.distribute.experimental.CentralStorageStrategy is tf.distribute.CentralStorageStrategy
    strategy = tf.distribute.experimental.CentralStorageStrategy(DEVICES, "CPU:0")
    with strategy.scope():
        v = tf.Variable(10.0, aggregation=tf.VariableAggregation.SUM)
    strategy.run(
        lambda: v.assign_add(tf.distribute.get_replica_context().replica_id_in_sync_group + 1.0)
    )
    assert float(v) == 13


def test_both_generations_of_communication_names():
    experimental = tf.distribute.experimental
    assert (
        experimental.CollectiveCommunication.AUTO is experimental.CommunicationImplementation.AUTO
    )
    assert {c.name for c in experimental.CollectiveCommunication} == {"AUTO", "RING", "NCCL"}


def test_reduce_ops_by_name():
    for name in ("sum", "Sum", "SUM", tf.distribute.ReduceOp.SUM):
        assert tf.distribute.ReduceOp(name) is tf.distribute.ReduceOp.SUM
