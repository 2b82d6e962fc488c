"""``ParameterServerStrategy`` in the coordinator: the cluster, where variables go, how it travels."""

import json

import cloudpickle
import numpy as np
import pytest

import stratagem as sg

ClusterSpec = sg.train.ClusterSpec
ONE_OF_EACH = {"ps": ["p:1"], "worker": ["w:1"]}


@pytest.fixture
def servers():
    servers = [sg.distribute.Server({"ps": {i: "127.0.0.1:0"}}, "ps", i) for i in range(3)]
    yield [server.target.removeprefix("grpc://") for server in servers]
    for server in servers:
        server.shutdown()


@pytest.fixture
def make(servers):
    made = []

    def make(partitioner=None):
        cluster = ClusterSpec({"ps": servers, "worker": ["127.0.0.1:1"]})
        resolver = sg.distribute.cluster_resolver.SimpleClusterResolver(cluster)
        made.append(sg.distribute.ParameterServerStrategy(resolver, partitioner))
        return made[-1]

    yield make
    for strategy in made:
        strategy.client.close()


def on_servers(variable):
    return [shard.server for shard in variable.shards]


def test_each_variable_and_each_shard_takes_a_turn(make):
    def halves_of_tables(shape, dtype):
        assert dtype == np.float32
        return [2, 1] if shape.rank == 2 else [1] * len(shape)

    strategy = make(halves_of_tables)
    with strategy.scope():
        scalar, table = sg.Variable(1.0), sg.Variable(np.zeros((5, 2)))
        vector, wide = sg.Variable(np.zeros(4)), sg.Variable(np.zeros((1, 2)))
    assert [on_servers(v) for v in (scalar, table, vector, wide)] == [[0], [1, 2], [0], [1]]
    assert [v.shape for v in table.variables] == [(3, 2), (2, 2)]
    assert strategy.extended.parameter_devices == tuple(
        f"/job:ps/replica:0/task:{index}/device:CPU:0" for index in range(3)
    )


def test_a_partitioner_that_splits_another_axis(make):
    strategy = make(lambda shape, dtype: [1, 2])
    with strategy.scope(), pytest.raises(ValueError, match="Only axis 0"):
        sg.Variable(np.zeros((4, 4)))


@pytest.mark.parametrize("partitions", [[2], (2, 1), [2, 1, 1], np.array([2, 1])])
def test_what_a_partitioner_may_return(make, partitions):
    with make(lambda shape, dtype: partitions).scope():
        assert [v.shape for v in sg.Variable(np.zeros((3, 2))).variables] == [(2, 2), (1, 2)]


@pytest.mark.parametrize("partitions", [None, [], [0, 1], [-1, 1], [1.5, 1], 2, "21", [None]])
def test_what_a_partitioner_may_not_return(make, partitions):
    strategy = make(lambda shape, dtype: partitions)
    message = r"must return a list of integers.*for the shape \[3, 2\]"
    with strategy.scope(), pytest.raises(ValueError, match=message):
        sg.Variable(np.zeros((3, 2)))


def test_a_scalar_is_never_split(make):
    def refuse(shape, dtype):
        raise AssertionError("asked for a scalar")

    with make(refuse).scope():
        assert float(sg.Variable(2.0)) == 2.0


def test_variables_side_by_side(make):
    strategy = make(sg.distribute.partitioners.FixedShardsPartitioner(2))
    with strategy.scope():
        sg.Variable(0.0)
        table = sg.Variable(np.zeros((4, 2)))
        with strategy.extended.colocate_vars_with(table):
            slot, step = sg.Variable(np.zeros((4, 2))), sg.Variable(0)
        after = sg.Variable(0.0)
    assert on_servers(table) == on_servers(slot) == [1, 2]
    assert (on_servers(step), on_servers(after)) == ([1], [0])
    elsewhere = strategy.extended.colocate_vars_with(sg.Variable(0.0))
    with pytest.raises(ValueError, match="of the same strategy"), elsewhere:
        pass


def test_update_runs_on_the_server(make):
    strategy = make()
    with strategy.scope():
        v = sg.Variable(3.0)

    def square(v, factor):
        v.assign(v * v * factor)
        return v.read_value() + 1

    assert float(strategy.extended.update(v, square, args=(2.0,))) == 19
    assert float(v) == 18

    @sg.function
    def step(factor):
        before = v.read_value()
        strategy.extended.update(v, square, args=(factor,))
        return before, v.read_value()

    before, after = step(np.float32(0.5))
    assert (float(before), float(after)) == (18, 162)


def test_it_and_its_variables_stay_themselves_in_one_process(make):
    strategy = make()
    with strategy.scope():
        v = sg.Variable(1.0)
    same_strategy, same_variable = cloudpickle.loads(cloudpickle.dumps((strategy, v)))
    assert same_strategy is strategy
    assert same_variable is v


@pytest.mark.parametrize(
    ("cluster", "task_type", "message"),
    [
        (
            {"worker": ["w:1"]},
            None,
            "a job 'ps', which holds variables, got the jobs \\['worker'\\]",
        ),
        ({"ps": ["p:1"]}, None, "a job 'worker', which runs steps"),
        ({"ps": ["p:1"], "worker": ["w:1"]}, "worker", "this task is worker 0"),
        ({"ps": {1: "p:1"}, "worker": ["w:1"]}, None, "none for ps \\[0\\]"),
        ({"ps": [], "worker": ["w:1"]}, None, "none for ps 0"),
        ({**ONE_OF_EACH, "judge": ["j:1"]}, None, r"among .*got \['judge'\]"),
        ({**ONE_OF_EACH, "chief": ["c:1", "c:2"]}, None, "at most one chief, got 2"),
        ({**ONE_OF_EACH, "evaluator": ["e:1", "e:2"]}, None, "at most one evaluator, got 2"),
        (ONE_OF_EACH, "judge", "task type must be one of .*got 'judge'"),
        (ONE_OF_EACH, "chief", r"This task is chief 0, but the cluster has only"),
        ({**ONE_OF_EACH, "chief": {1: "c:1"}}, "chief", "task_index must be a task of job 'chief'"),
    ],
)
def test_clusters_that_do_not_fit(cluster, task_type, message):
    resolver = sg.distribute.cluster_resolver.SimpleClusterResolver(
        ClusterSpec(cluster), task_type=task_type, task_id=0
    )
    with pytest.raises(ValueError, match=message):
        sg.distribute.ParameterServerStrategy(resolver)


def test_arguments_that_do_not_fit(servers):
    with pytest.raises(ValueError, match="must be a ClusterResolver"):
        sg.distribute.ParameterServerStrategy(servers)
    cluster = ClusterSpec({"ps": servers, "worker": ["127.0.0.1:1"]})
    resolver = sg.distribute.cluster_resolver.SimpleClusterResolver(cluster)
    with pytest.raises(ValueError, match="variable_partitioner must be a partitioner"):
        sg.distribute.ParameterServerStrategy(resolver, variable_partitioner=2)


@pytest.fixture
def tf_config(monkeypatch):
    def set_config(cluster, job, index=0):
        config = {"cluster": cluster, "task": {"type": job, "index": index}}
        monkeypatch.setenv("TF_CONFIG", json.dumps(config))

    return set_config


def test_without_a_resolver_it_reads_tf_config(servers, tf_config):
    cluster = {"chief": ["127.0.0.1:1"], "ps": servers, "worker": ["127.0.0.1:2"]}
    tf_config(cluster, "chief")
    sg.distribute.Server.serve_task()  # returns: this is the chief
    strategy = sg.distribute.ParameterServerStrategy()
    with strategy.scope():
        v = sg.Variable(2.0)
    assert v.numpy() == 2.0
    assert strategy.cluster_resolver.task_type == "chief"
    strategy.client.close()


def test_without_a_cluster_it_says_how_to_start(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    with pytest.raises(ValueError, match=r"from TF_CONFIG, .*`stratagem run --chief"):
        sg.distribute.ParameterServerStrategy()


def test_a_worker_is_told_to_serve(tf_config):
    tf_config({"chief": ["c:1"], **ONE_OF_EACH}, "worker")
    with pytest.raises(ValueError, match=r"this task is worker 0\. Call .*serve_task\(\) before"):
        sg.distribute.ParameterServerStrategy()


def test_a_task_serves_until_it_is_shut_down_and_exits(tf_config, monkeypatch):
    tf_config({"ps": ["127.0.0.1:0"], "worker": ["w:1"]}, "ps")
    joined = []

    def join(server):
        joined.append(server.server_def.job_name)
        server.shutdown()

    monkeypatch.setattr(sg.distribute.Server, "join", join)  # else it waits for the job's end
    with pytest.raises(SystemExit) as exit_:
        sg.distribute.Server.serve_task()
    assert (exit_.value.code, joined) == (0, ["ps"])


def test_the_experimental_name_is_the_same():
    experimental = sg.distribute.experimental.ParameterServerStrategy
    assert experimental is sg.distribute.ParameterServerStrategy


def test_an_initializer_is_asked_for_the_parts_of_shards(make):
    asked = []

    def initializer(partition_shape, partition_offset):
        asked.append((partition_shape, partition_offset))
        return np.full(partition_shape, partition_offset[0])

    with make(sg.distribute.partitioners.FixedShardsPartitioner(2)).scope():
        table = sg.Variable(initializer, shape=(5, 2), dtype=np.float32)
    assert asked == [((3, 2), (0, 0)), ((2, 2), (3, 0))]
    assert [v.numpy().tolist() for v in table.variables] == [[[0, 0]] * 3, [[3, 3]] * 2]


@pytest.mark.parametrize("refuses", [False, True])
def test_an_initializer_that_knows_only_the_whole(make, refuses):
    asked = []

    def initializer(**parts):
        if parts:
            raise ValueError("parts are not supported")
        asked.append(parts)
        return np.arange(10.0).reshape(5, 2)

    plain = initializer if refuses else lambda: initializer()
    with make(sg.distribute.partitioners.FixedShardsPartitioner(2)).scope():
        table = sg.Variable(plain, shape=(5, 2), dtype=np.float32)
    assert len(asked) == 1, "each shard is a part of the same value"
    assert table.numpy().tolist() == np.arange(10.0).reshape(5, 2).tolist()
    assert len(table.variables) == 2


def test_an_initializer_of_a_variable_that_is_not_split(make):
    def initializer(partition_shape=(3,), partition_offset=None):
        assert partition_offset is None
        return np.ones(partition_shape)

    with make().scope():
        assert sg.Variable(initializer, shape=(3,), dtype="int32").numpy().tolist() == [1, 1, 1]
        assert float(sg.Variable(lambda: 2.0, shape=(), dtype="float32")) == 2.0


def test_initial_values_of_another_shape(make):
    strategy = make(sg.distribute.partitioners.FixedShardsPartitioner(2))
    with strategy.scope():
        for initial in (lambda: np.zeros((4, 2)), np.zeros((4, 2))):
            with pytest.raises(ValueError, match=r"\(5, 2\).*, got \(4, 2\)"):
                sg.Variable(initial, shape=(5, 2), dtype=np.float32)
        with pytest.raises(ValueError, match="fully defined"):
            sg.Variable(lambda: np.zeros((4, 2)), shape=(None, 2), dtype=np.float32)


def test_variables_of_workers_need_a_coordinator(make):
    with make().scope(), pytest.raises(RuntimeError, match="Create ClusterCoordinator"):
        sg.Variable(0.0, per_worker_variable=True)
