"""The code blocks of the reference of ``tf.distribute``, in its order, with ``import stratagem as tf``.

``documented_output.py`` says what differs. Blocks that only give a signature are in ``names.txt``.
"""

import json

import numpy as np
import pytest
from documented_output import as_shown, one_line, prints, shows

import stratagem as tf
from stratagem._src.cluster.reserved_ports import ReservedPorts
from stratagem.distribute.cluster_resolver import SimpleClusterResolver
from stratagem.distribute.partitioners import FixedShardsPartitioner, MinSizePartitioner


@pytest.fixture
def strategy():
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


@pytest.fixture
def cluster_spec():
    return tf.train.ClusterSpec(
        {
            "ps": ["localhost:2222", "localhost:2223"],
            "worker": ["localhost:2224", "localhost:2225", "localhost:2226"],
        }
    )


class OneDeviceResolver(SimpleClusterResolver):
    @property
    def local_device_ids(self):
        return (0,)


@pytest.fixture
def servers_and_workers():
    with ReservedPorts(3) as ports:
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


@pytest.fixture
def dist_dataset(strategy):
    dataset = tf.data.Dataset.from_tensor_slices([5.0, 6.0, 7.0, 8.0]).batch(2)
    return strategy.experimental_distribute_dataset(dataset)


def test_01_task_id(cluster_spec):
    cluster_resolver = SimpleClusterResolver(cluster_spec, task_type="worker", task_id=0)
    assert cluster_resolver.task_type == "worker"
    assert cluster_resolver.task_id == 0
    assert SimpleClusterResolver(cluster_spec).task_id is None


def test_02_task_type(cluster_spec):
    cluster_resolver = SimpleClusterResolver(cluster_spec, task_type="worker", task_id=1)
    assert cluster_resolver.task_type == "worker"
    assert cluster_resolver.task_type != "ps"
    assert SimpleClusterResolver(cluster_spec).task_type is None


def test_03_simple_cluster_resolver(cluster_spec):
    resolver = SimpleClusterResolver(
        cluster_spec,
        master="grpc://localhost:2224",
        task_type="worker",
        task_id=0,
        environment="somewhere",
        num_accelerators={"GPU": 2},
        rpc_layer="grpc",
    )
    assert resolver.cluster_spec().as_dict() == cluster_spec.as_dict()
    assert resolver.environment == "somewhere"
    assert resolver.num_accelerators() == {"GPU": 2}


def test_04_tf_config_cluster_resolver(cluster_spec, monkeypatch):
    task = {"type": "worker", "index": 2}
    config = {"cluster": cluster_spec.as_dict(), "task": task, "rpc_layer": "grpc"}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    assert resolver.cluster_spec().as_dict() == cluster_spec.as_dict()
    assert (resolver.task_type, resolver.task_id) == ("worker", 2)
    assert resolver.master() == "grpc://localhost:2226"
    monkeypatch.undo()


def test_05_create_per_worker_dataset(servers_and_workers):
    strategy = servers_and_workers
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
    coordinator.join()
    assert coordinator.done()


def test_06_fetch(servers_and_workers):
    strategy = servers_and_workers
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


def test_07_schedule(servers_and_workers):
    coordinator = tf.distribute.coordinator.ClusterCoordinator(servers_and_workers)

    @tf.function
    def add(x, y):
        return x + y

    scheduled = [coordinator.schedule(add, args=(i,), kwargs={"y": 10}) for i in range(4)]
    coordinator.join()
    assert [int(value.fetch()) for value in scheduled] == [10, 11, 12, 13]


def test_08_distributed_dataset(dist_dataset):
    documented = [
        """PerReplica:{
          0: tf.Tensor([5.], shape=(1,), dtype=float32),
          1: tf.Tensor([6.], shape=(1,), dtype=float32)
        }""",
        """PerReplica:{
          0: tf.Tensor([7.], shape=(1,), dtype=float32),
          1: tf.Tensor([8.], shape=(1,), dtype=float32)
        }""",
    ]
    for x, text in zip(dist_dataset, documented, strict=True):
        assert prints(x, text)
    dataset_iterator = iter(dist_dataset)
    assert shows(
        next(dataset_iterator),
        """PerReplica:{
          0: <tf.Tensor: shape=(1,), dtype=float32, numpy=array([5.], dtype=float32)>,
          1: <tf.Tensor: shape=(1,), dtype=float32, numpy=array([6.], dtype=float32)>
        }""",
    )
    assert isinstance(dist_dataset, tf.distribute.DistributedDataset)
    assert isinstance(dataset_iterator, tf.distribute.DistributedIterator)


def test_09_values_of_a_dataset(dist_dataset):
    element = next(iter(dist_dataset))
    assert isinstance(element, tf.distribute.DistributedValues)
    assert shows(
        element,
        """PerReplica:{
          0: <tf.Tensor: shape=(1,), dtype=float32, numpy=array([5.], dtype=float32)>,
          1: <tf.Tensor: shape=(1,), dtype=float32, numpy=array([6.], dtype=float32)>
        }""",
    )


def test_10_values_that_run_returns(strategy):
    @tf.function
    def f():
        ctx = tf.distribute.get_replica_context()
        return ctx.replica_id_in_sync_group

    assert shows(
        strategy.run(f),
        """PerReplica:{
          0: <tf.Tensor: shape=(), dtype=int32, numpy=0>,
          1: <tf.Tensor: shape=(), dtype=int32, numpy=1>
        }""",
    )


def test_11_values_that_run_takes(strategy, dist_dataset):
    distributed_values = next(iter(dist_dataset))

    @tf.function
    def f(x):
        return x * 2.0

    assert shows(
        strategy.run(f, args=(distributed_values,)),
        """PerReplica:{
          0: <tf.Tensor: shape=(1,), dtype=float32, numpy=array([10.], dtype=float32)>,
          1: <tf.Tensor: shape=(1,), dtype=float32, numpy=array([12.], dtype=float32)>
        }""",
    )


def test_12_values_that_are_reduced(strategy, dist_dataset):
    distributed_values = next(iter(dist_dataset))
    reduced = strategy.reduce(tf.distribute.ReduceOp.SUM, distributed_values, axis=0)
    assert shows(reduced, "<tf.Tensor: shape=(), dtype=float32, numpy=11.>")


def test_13_get_replica_context(strategy, capsys):
    assert isinstance(tf.distribute.get_replica_context(), tf.distribute.ReplicaContext)
    with strategy.scope():
        print(tf.distribute.get_replica_context())
    assert capsys.readouterr().out == "None\n"

    def f():
        return tf.distribute.get_replica_context()

    contexts = strategy.run(f)
    assert one_line(repr(contexts)).startswith("PerReplica:{ 0: <")
    assert [type(context) for context in contexts.values] == [tf.distribute.ReplicaContext] * 2
    assert contexts.values[0] is not contexts.values[1]


def test_14_get_strategy(strategy):
    default = tf.distribute.get_strategy()
    assert default.num_replicas_in_sync == 1
    with strategy.scope():
        assert tf.distribute.get_strategy() is strategy
        assert "MirroredStrategy" in str(tf.distribute.get_strategy())
    assert tf.distribute.get_strategy() is default


def test_15_has_strategy(strategy, capsys):
    print(tf.distribute.has_strategy())
    with strategy.scope():
        print(tf.distribute.has_strategy())
    assert capsys.readouterr().out == "False\nTrue\n"


def test_16_in_cross_replica_context(strategy, capsys):
    print(tf.distribute.in_cross_replica_context())
    with strategy.scope():
        print(tf.distribute.in_cross_replica_context())
    assert capsys.readouterr().out == "False\nTrue\n"

    def f():
        return tf.distribute.in_cross_replica_context()

    assert shows(strategy.run(f), "False")


def test_17_get_per_replica_batch_size():
    context = tf.distribute.InputContext(
        num_input_pipelines=2, input_pipeline_id=1, num_replicas_in_sync=4
    )
    assert context.get_per_replica_batch_size(32) == 8
    assert (context.num_input_pipelines, context.input_pipeline_id) == (2, 1)
    assert context.num_replicas_in_sync == 4
    with pytest.raises(ValueError, match="divi"):
        context.get_per_replica_batch_size(30)


@pytest.mark.parametrize("devices", [None, []])
def test_18_mirrored_strategy(devices):
    strategy = tf.distribute.MirroredStrategy(
        devices=devices, cross_device_ops=tf.distribute.NcclAllReduce()
    )
    assert strategy.num_replicas_in_sync == len(tf.config.list_logical_devices("CPU"))


def test_19_mirrored_variable(strategy):
    with strategy.scope():
        x = tf.Variable(1.0)
    assert shows(
        x,
        """MirroredVariable:{
          0: <tf.Variable 'Variable:0' shape=() dtype=float32, numpy=1.0>,
          1: <tf.Variable 'Variable/replica_1:0' shape=() dtype=float32, numpy=1.0>
        }""",
    )


def test_20_multi_worker_mirrored_strategy():
    strategy = tf.distribute.experimental.MultiWorkerMirroredStrategy()
    with strategy.scope():
        x = tf.Variable(1.0)
    assert one_line(repr(x)).startswith("MirroredVariable:{ 0: <sg.Variable 'Variable:0'")


def test_21_one_device_strategy():
    strategy = tf.distribute.OneDeviceStrategy("/cpu:1")
    assert strategy.num_replicas_in_sync == 1
    with strategy.scope():
        assert tf.Variable(1.0).device == as_shown("/job:localhost/replica:0/task:0/device:GPU:1")


def test_22_one_device_strategy_at_work(capsys):
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
    documented = as_shown("/job:localhost/replica:0/task:0/device:GPU:0 90")
    assert one_line(capsys.readouterr().out) == documented


def test_23_fixed_shards_partitioner():
    partitioner = FixedShardsPartitioner(num_shards=2)
    assert shows(partitioner(tf.TensorShape([10, 3]), tf.float32, axis=0), "[2, 1]")
    assert shows(partitioner(tf.TensorShape([10, 3]), tf.float32, axis=1), "[1, 2]")


def test_24_min_size_partitioner():
    partitioner = MinSizePartitioner(min_shard_bytes=24, max_shards=4)
    assert shows(partitioner(tf.TensorShape([10, 3]), tf.float32, axis=0), "[4, 1]")
    partitioner = MinSizePartitioner(min_shard_bytes=24, max_shards=8)
    assert shows(partitioner(tf.TensorShape([10, 3]), tf.float32, axis=0), "[5, 1]")


def test_25_a_partitioner_is_called():
    class HalvesThings(tf.distribute.partitioners.Partitioner):
        def __call__(self, shape, dtype, axis=0):
            return [2 if dimension == axis else 1 for dimension in range(len(shape))]

    assert HalvesThings()(tf.TensorShape([4, 4]), tf.float32, axis=1) == [1, 2]


def test_26_reduction_to_one_device():
    reduction = tf.distribute.ReductionToOneDevice(reduce_to_device="CPU:1", accumulation_fn=None)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], cross_device_ops=reduction)

    def f():
        context = tf.distribute.get_replica_context()
        return context.all_reduce("SUM", context.replica_id_in_sync_group + 1.0)

    assert [float(value) for value in strategy.run(f).values] == [3.0, 3.0]


def test_27_replica_context(strategy):
    def f():
        replica_context = tf.distribute.get_replica_context()
        assert replica_context.num_replicas_in_sync == 2
        assert replica_context.strategy is strategy
        return replica_context.replica_id_in_sync_group

    assert shows(
        strategy.run(f),
        """PerReplica:{
          0: <tf.Tensor: shape=(), dtype=int32, numpy=0>,
          1: <tf.Tensor: shape=(), dtype=int32, numpy=1>
        }""",
    )


def test_28_server():
    with ReservedPorts(1) as (port,):
        spec = tf.train.ClusterSpec({"worker": [f"127.0.0.1:{port}"]})
        server = tf.distribute.Server(
            spec, job_name="worker", task_index=None, protocol="grpc", config=None, start=False
        )
        server.start()
        assert server.target == f"grpc://127.0.0.1:{port}"
        server.shutdown()
        server.join()


def test_29_create_local_server():
    server = tf.distribute.Server.create_local_server(config=None, start=True)
    assert [job.name for job in server.server_def.cluster.job] == ["local"]
    server.shutdown()
    server.join()


def test_30_distribute_datasets_from_function(strategy):
    def dataset_fn(input_context):
        global_batch_size = 4
        batch_size = input_context.get_per_replica_batch_size(global_batch_size)
        dataset = tf.data.Dataset.range(8).batch(global_batch_size)
        dataset = dataset.unbatch().batch(batch_size)
        return dataset.prefetch(2)

    documented = [
        """PerReplica:{
          0: tf.Tensor([0 1], shape=(2,), dtype=int64),
          1: tf.Tensor([2 3], shape=(2,), dtype=int64)
        }""",
        """PerReplica:{
          0: tf.Tensor([4 5], shape=(2,), dtype=int64),
          1: tf.Tensor([6 7], shape=(2,), dtype=int64)
        }""",
    ]
    dist_dataset = strategy.distribute_datasets_from_function(dataset_fn)
    for x, text in zip(dist_dataset, documented, strict=True):
        assert prints(x, text)


def test_31_experimental_distribute_dataset(strategy, dist_dataset):
    @tf.function
    def f(x):
        return x * 2.0

    documented = [
        """PerReplica:{
          0: tf.Tensor([10.], shape=(1,), dtype=float32),
          1: tf.Tensor([12.], shape=(1,), dtype=float32)
        }""",
        """PerReplica:{
          0: tf.Tensor([14.], shape=(1,), dtype=float32),
          1: tf.Tensor([16.], shape=(1,), dtype=float32)
        }""",
    ]
    for x, text in zip(dist_dataset, documented, strict=True):
        assert prints(strategy.run(f, args=(x,)), text)
    assert f.experimental_get_tracing_count() == 1


@pytest.mark.parametrize(
    ("size", "batch", "replicas", "documented"),
    [
        (10, 4, 2, [[[0, 1], [4, 5], [8]], [[2, 3], [6, 7], [9]]]),
        (8, 4, 3, [[[0, 1], [4, 5]], [[2, 3], [6, 7]], [[], []]]),
        (10, 5, 3, [[[0, 1], [5, 6]], [[2, 3], [7, 8]], [[4], [9]]]),
    ],
)
def test_31_how_batches_are_divided(size, batch, replicas, documented):
    strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(replicas)])
    dataset = tf.data.Dataset.range(size).batch(batch, drop_remainder=False)
    of_each_replica = [[] for _ in range(replicas)]
    for x in strategy.experimental_distribute_dataset(dataset):
        for mine, value in zip(of_each_replica, x.values, strict=True):
            mine.append(np.asarray(value).tolist())
    assert of_each_replica == documented


def test_32_auto_shard_policy():
    dataset = tf.data.Dataset.range(16).batch(4)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    dataset = dataset.with_options(options)
    policy = dataset.options().experimental_distribute.auto_shard_policy
    assert policy is tf.data.experimental.AutoShardPolicy.DATA


def test_33_gather(strategy):
    distributed_values = strategy.experimental_distribute_values_from_function(
        lambda _: tf.identity(tf.constant([[1], [2]]))
    )
    documented = """<tf.Tensor: shape=(4, 1), dtype=int32, numpy=
    array([[1],
           [2],
           [1],
           [2]], dtype=int32)>"""
    assert shows(strategy.gather(distributed_values, axis=0), documented)
    with strategy.scope():
        distributed_values = tf.Variable([[1], [2]])
    assert shows(strategy.gather(distributed_values, axis=0), documented)


def test_34_run(strategy):
    options = tf.distribute.RunOptions()

    def f(x, y):
        return x - y * tf.distribute.get_replica_context().replica_id_in_sync_group

    result = strategy.run(f, args=(5.0,), kwargs={"y": 2.0}, options=options)
    assert [float(value) for value in strategy.experimental_local_results(result)] == [5.0, 3.0]


def test_35_scope(strategy):
    with strategy.scope():
        mirrored_variable = tf.Variable(1.0)
    regular_variable = tf.Variable(1.0)
    assert isinstance(mirrored_variable, tf.distribute.DistributedValues)
    assert shows(regular_variable, "<tf.Variable 'Variable:0' shape=() dtype=float32, numpy=1.0>")
