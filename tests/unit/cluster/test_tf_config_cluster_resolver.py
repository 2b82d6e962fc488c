import json
import os
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratagem._src.cluster import (
    ClusterSpec,
    EnvironmentVariableError,
    SimpleClusterResolver,
    TaskError,
    TFConfigClusterResolver,
    visible_devices,
)
from stratagem._src.cluster.errors import LaunchError
from stratagem._src.cluster.resolvers.cluster_resolver import check_task_of

CLUSTER = {"chief": ["c:1"], "worker": ["w0:1", "w1:1"], "ps": {"3": "p3:1"}}


@pytest.fixture
def set_config(monkeypatch):
    return lambda config: monkeypatch.setenv("TF_CONFIG", json.dumps(config))


def test_it_reads_the_cluster_and_the_task(set_config):
    set_config({"cluster": CLUSTER, "task": {"type": "worker", "index": 1}, "rpc_layer": "grpc"})
    resolver = TFConfigClusterResolver()

    assert resolver.cluster_spec() == ClusterSpec(CLUSTER)
    assert (resolver.task_type, resolver.task_id, resolver.rpc_layer) == ("worker", 1, "grpc")
    assert (resolver.master(), resolver.master("ps", 3)) == ("grpc://w1:1", "grpc://p3:1")
    assert (resolver.coordinator_address, resolver.process_id, resolver.num_processes) == (
        "c:1",
        2,
        3,
    )


def test_arguments_and_settings_come_before_the_variable(set_config):
    set_config({"cluster": CLUSTER, "task": {"type": "worker", "index": 1}, "rpc_layer": "grpc"})
    resolver = TFConfigClusterResolver(
        task_type="ps", task_id=3, rpc_layer="http", environment="cloud"
    )

    assert (resolver.task_type, resolver.task_id, resolver.rpc_layer) == ("ps", 3, "http")
    assert resolver.environment == "cloud"
    resolver.task_id = 0
    assert resolver.task_id == 0


def test_it_follows_the_variable(set_config):
    resolver = TFConfigClusterResolver()

    set_config({"cluster": CLUSTER, "task": {"type": "worker", "index": 0}})
    assert resolver.task_id == 0
    set_config({"cluster": CLUSTER, "task": {"type": "worker", "index": "1"}})
    assert resolver.task_id == 1


@pytest.mark.parametrize(
    "config", [None, "", "{}", '{"task": {}}', '{"cluster": {}}', '{"environment": "cloud"}']
)
def test_without_a_cluster_it_is_empty(monkeypatch, config):
    if config is not None:
        monkeypatch.setenv("TF_CONFIG", config)
    resolver = TFConfigClusterResolver()

    assert not resolver.cluster_spec()
    assert (resolver.task_type, resolver.task_id, resolver.rpc_layer) == (None, None, None)
    assert (resolver.master(), resolver.environment, resolver.process_id) == ("", "", 0)


def test_master_is_the_session_master_and_empty_for_a_single_task(set_config):
    set_config({"cluster": {"worker": ["w0:1"]}, "task": {"type": "worker", "index": 0}})
    assert TFConfigClusterResolver().master() == ""
    set_config({"cluster": CLUSTER, "session_master": "grpc://somewhere:1"})
    assert TFConfigClusterResolver().master() == "grpc://somewhere:1"


@pytest.mark.parametrize(
    ("config", "ask", "said"),
    [
        ("{", "cluster_spec", "TF_CONFIG must hold JSON"),
        ("[1]", "cluster_spec", r"a JSON object such as .*but it holds '\[1\]'"),
        ('{"cluster": 3}', "cluster_spec", "'cluster'.*dictionary"),
        ('{"cluster": {"worker": ["w0"]}}', "cluster_spec", "host:port, got 'w0'"),
        ('{"task": []}', "task_type", "'task'"),
        ('{"task": {"type": 1}}', "task_type", "string as the 'type'"),
        ('{"task": {"index": -1}}', "task_id", "whole number >= 0 as the 'index'"),
        ('{"task": {"index": true}}', "task_id", "'index'"),
        ('{"task": {"index": "x"}}', "task_id", "'index'"),
        ('{"rpc_layer": 1}', "rpc_layer", "'rpc_layer'"),
        ('{"task": {"index": 1.5}}', "task_id", "'index'"),
        ('{"task": {"type": "worker", "index": 0}}', "cluster_spec", "a 'cluster' that has its"),
        ('{"clusters": {}, "task": {"index": 1}}', "cluster_spec", "a 'cluster' that has its"),
        ('{"cluster": {"worker": ["a:1", "a:1"]}}', "cluster_spec", "'a:1' for worker 0 and for w"),
        ('{"cluster": {"chief": ["A:1"], "ps": ["a:1"]}}', "cluster_spec", "for chief 0 and for p"),
    ],
)
def test_a_malformed_variable_is_named_with_what_it_holds(monkeypatch, config, ask, said):
    monkeypatch.setenv("TF_CONFIG", config)
    resolver = TFConfigClusterResolver()

    with pytest.raises(EnvironmentVariableError, match=said):
        resolver.cluster_spec() if ask == "cluster_spec" else getattr(resolver, ask)


ONE = {"worker": ["127.0.0.1:4711"]}
TWO = {"worker": ["127.0.0.1:4711", "127.0.0.1:4712"]}


@pytest.mark.parametrize(
    ("cluster", "task", "said"),
    [
        (ONE, {"type": "worker", "index": 1}, r"task of job 'worker', got 1. Its tasks are \[0\]"),
        (TWO, {"type": "worker", "index": 2}, "task of job 'worker', got 2"),
        (ONE, {"type": "wroker", "index": 0}, "task_type must be one of .*got 'wroker'"),
        (ONE, {"type": "chief", "index": 0}, r"task_type must be one of \['worker'\], got 'chief'"),
        (ONE, {"index": 0}, "task_type must be one of .*got None"),
        (ONE, {"type": "worker"}, "task_id must be set"),
        (ONE, {}, "task_type must be one of .*got None"),
        ({"worker": []}, {"type": "worker", "index": 0}, "task of job 'worker', got 0"),
        ({"chief": ["a:1", "b:1"]}, {"type": "chief", "index": 0}, "at most one 'chief', got 2"),
        (
            {"worker": ["a:0", "b:1"]},
            {"type": "worker", "index": 1},
            "leader worker 0 must have a port.*'a:0'",
        ),
    ],
)
def test_a_task_that_cannot_be_is_refused_at_once(set_config, cluster, task, said):
    set_config({"cluster": cluster, "task": task})
    with pytest.raises(TaskError, match=f"(?s){said}.*Correct TF_CONFIG, which holds"):
        check_task_of(TFConfigClusterResolver())
    resolver = SimpleClusterResolver(
        ClusterSpec(cluster), task_type=task.get("type", ""), task_id=task.get("index")
    )
    with pytest.raises(TaskError, match="Give the resolver the task_type and task_id"):
        check_task_of(resolver)


@pytest.mark.parametrize(
    ("cluster", "task"),
    [
        ({}, {"type": "evaluator", "index": 0}),
        (TWO, {"type": "evaluator", "index": 0}),
        (TWO, {"type": "worker", "index": "1"}),
        ({"worker": ["localhost:0"]}, {"type": "worker", "index": 0}),
        ({"chief": ["c:1"], "worker": {"0": "w:1"}}, {"type": "worker", "index": 0}),
    ],
)
def test_a_task_that_can_be_is_not_refused(set_config, cluster, task):
    set_config({"cluster": cluster, "task": task})
    check_task_of(TFConfigClusterResolver())


def test_a_long_value_is_cut(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", "[" * 100_000)

    with pytest.raises(EnvironmentVariableError) as caught:
        TFConfigClusterResolver().cluster_spec()
    assert len(str(caught.value)) < 1000


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["cluster", "task", "type", "index", "worker", "0"]), inner, max_size=4
        )
    ),
    max_leaves=8,
)
usable = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=40)


@given(usable | json_values.map(json.dumps) | json_values.map(lambda v: json.dumps({"cluster": v})))
def test_any_value_is_understood_or_rejected_by_name(text):
    with mock.patch.dict(os.environ, TF_CONFIG=text):
        resolver = TFConfigClusterResolver()
        for ask in (
            resolver.cluster_spec,
            lambda: resolver.task_type,
            lambda: resolver.task_id,
            lambda: resolver.rpc_layer,
        ):
            message = "TF_CONFIG must hold"
            try:
                ask()
            except EnvironmentVariableError as error:
                message = str(error)
            assert message.startswith("TF_CONFIG must hold")


@pytest.fixture
def four_gpus(monkeypatch):
    found = visible_devices.VisibleDevices("cuda", "CUDA_VISIBLE_DEVICES", ("0", "1", "2", "3"))
    monkeypatch.setattr(visible_devices, "find_devices", lambda environment: found)


@pytest.mark.parametrize(
    ("cluster", "task", "share"),
    [
        ({"worker": ["a:1", "a:2", "b:1", "b:2"]}, ("worker", 0), (0, 1)),
        ({"worker": ["a:1", "a:2", "b:1", "b:2"]}, ("worker", 3), (2, 3)),
        ({"worker": ["localhost:1", "127.0.0.1:2"]}, ("worker", 1), (2, 3)),
        ({"chief": ["a:1"], "worker": ["a:2", "a:3", "a:4"]}, ("worker", 2), (3,)),
        ({"chief": ["a:1"], "worker": ["a:2", "a:3"], "ps": ["a:4"]}, ("worker", 1), (2, 3)),
        ({"chief": ["a:1"], "worker": ["a:2", "a:3"], "ps": ["a:4"]}, ("ps", 0), None),
        ({"worker": ["a:1", "b:1"]}, ("worker", 0), None),
        ({"worker": ["a:1", "a:2"]}, ("evaluator", 0), None),
    ],
)
def test_workers_of_one_host_divide_its_gpus(set_config, four_gpus, cluster, task, share):
    set_config({"cluster": cluster, "task": {"type": task[0], "index": task[1]}})
    assert TFConfigClusterResolver().local_device_ids == share


def test_visible_gpus_are_those_of_the_task_alone(set_config, four_gpus, monkeypatch):
    set_config({"cluster": {"worker": ["a:1", "a:2"]}, "task": {"type": "worker", "index": 1}})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    assert TFConfigClusterResolver().local_device_ids is None


def test_gpus_that_cannot_be_divided_are_refused(set_config, four_gpus):
    workers = ["a:1", "a:2", "a:3"]
    set_config({"cluster": {"worker": workers}, "task": {"type": "worker", "index": 1}})
    with pytest.raises(LaunchError, match=r"4 GPUs .* and 3 tasks"):
        _ = TFConfigClusterResolver().local_device_ids


def test_chips_of_a_tpu_host_are_not_divided(set_config, monkeypatch):
    chips = visible_devices.VisibleDevices("tpu", "", ("0", "1"))
    monkeypatch.setattr(visible_devices, "find_devices", lambda environment: chips)
    set_config({"cluster": {"worker": ["a:1", "a:2"]}, "task": {"type": "worker", "index": 1}})
    with pytest.raises(LaunchError, match="belong to one process"):
        _ = TFConfigClusterResolver().local_device_ids
