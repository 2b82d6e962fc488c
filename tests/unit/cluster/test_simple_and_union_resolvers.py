import re

import jax
import pytest

from stratagem._src.cluster import (
    ClusterResolver,
    ClusterSpec,
    SimpleClusterResolver,
    TaskError,
    UnionClusterResolver,
    UnionResolver,
)

SPEC = ClusterSpec({"ps": ["p0:1", "p1:1"], "worker": ["w0:1", "w1:1", "w2:1"]})


def simple(tasks, **settings):
    return SimpleClusterResolver(ClusterSpec({"worker": tasks}), **settings)


def test_a_simple_resolver_answers_with_what_it_was_given():
    resolver = SimpleClusterResolver(
        SPEC,
        master="m:1",
        task_type="ps",
        task_id=1,
        environment="cloud",
        num_accelerators={"GPU": 8},
        rpc_layer="grpc",
    )

    assert resolver.cluster_spec() == SPEC
    assert (resolver.task_type, resolver.task_id) == ("ps", 1)
    assert resolver.environment == "cloud"
    assert resolver.rpc_layer == "grpc"
    assert resolver.num_accelerators() == {"GPU": 8}
    assert resolver.num_accelerators("worker", 2) == {"GPU": 8}
    assert resolver.master() == "grpc://m:1"
    assert resolver.master("worker", 0) == "grpc://w0:1"
    assert resolver.master("worker", 2, rpc_layer="http") == "http://w2:1"


def test_the_task_and_the_protocol_can_be_set():
    resolver = SimpleClusterResolver(SPEC, task_type="ps", task_id=1, rpc_layer="grpc")

    resolver.task_type, resolver.task_id, resolver.rpc_layer = "worker", 0, "http"

    assert (resolver.task_type, resolver.task_id, resolver.rpc_layer) == ("worker", 0, "http")
    assert resolver.process_id == 0


def test_a_simple_resolver_checks_its_arguments():
    with pytest.raises(TypeError, match="ClusterSpec, got dict"):
        SimpleClusterResolver({"worker": ["w0:1"]})
    with pytest.raises(TypeError, match="master must be a string, got int"):
        SimpleClusterResolver(SPEC, master=3)


@pytest.mark.parametrize(
    ("jobs", "task", "address", "number", "together"),
    [
        ({}, (None, None), None, 0, 1),
        ({"worker": ["w0:1", "w1:1"]}, ("worker", 1), "w0:1", 1, 2),
        ({"worker": ["w0:1"], "chief": ["c:1"]}, ("worker", 0), "c:1", 1, 2),
        ({"worker": ["w0:1"], "chief": ["c:1"]}, ("evaluator", 0), None, 0, 1),
    ],
)
def test_the_start_of_jax_distributed_follows_from_the_spec(jobs, task, address, number, together):
    resolver = SimpleClusterResolver(ClusterSpec(jobs), task_type=task[0], task_id=task[1])

    assert resolver.coordinator_address == address
    assert resolver.process_id == number
    assert resolver.num_processes == together
    assert resolver.local_device_ids is None


def test_without_a_number_the_local_accelerators_are_counted():
    expected: dict[str, int] = {}
    for device in jax.local_devices():
        if device.platform != "cpu":
            expected[device.platform.upper()] = expected.get(device.platform.upper(), 0) + 1

    assert simple(["w0:1"], task_type="worker", task_id=0).num_accelerators() == expected


def test_accelerators_of_each_kind_are_counted_and_cpus_are_not(monkeypatch):
    class Device:
        def __init__(self, platform):
            self.platform = platform

    devices = [Device("gpu"), Device("cpu"), Device("gpu"), Device("tpu")]
    monkeypatch.setattr(jax, "local_devices", lambda: devices)

    assert simple(["w0:1"]).num_accelerators() == {"GPU": 2, "TPU": 1}


def test_only_this_task_can_be_asked_for_its_devices():
    resolver = simple(["w0:1", "w1:1"], task_type="worker", task_id=0)

    with pytest.raises(TaskError, match=re.escape("this task (worker 0), got worker 1")):
        resolver.num_accelerators("worker", 1)
    with pytest.raises(TypeError, match="config_proto must be None"):
        resolver.num_accelerators(config_proto=object())


def test_a_resolver_of_the_user_needs_only_a_spec():
    class Own(ClusterResolver):
        def cluster_spec(self):
            return SPEC

    resolver = Own()

    assert (resolver.task_type, resolver.task_id, resolver.rpc_layer) == (None, None, None)
    assert (resolver.master(), resolver.environment) == ("", "")
    assert resolver.master("worker", 1, "grpc") == "grpc://w1:1"
    with pytest.raises(TypeError, match="abstract"):
        ClusterResolver()


@pytest.mark.parametrize(
    ("parts", "union"),
    [
        ([["a:1", "b:1"]], ["a:1", "b:1"]),
        ([["a:1", "b:1"], ["c:1"]], ["a:1", "b:1", "c:1"]),
        ([{5: "a:1", 9: "b:1"}, {3: "c:1"}], {3: "c:1", 5: "a:1", 9: "b:1"}),
        ([["a:1", "b:1"], {3: "c:1", 6: "d:1"}], {0: "a:1", 1: "b:1", 3: "c:1", 6: "d:1"}),
        ([{1: "a:1", 3: "b:1"}], {1: "a:1", 3: "b:1"}),
    ],
)
def test_a_union_has_the_tasks_of_all(parts, union):
    resolver = UnionResolver(*[simple(tasks) for tasks in parts])

    assert resolver.cluster_spec() == ClusterSpec({"worker": union})


@pytest.mark.parametrize(
    ("parts", "twice"),
    [
        ([{7: "a:1", 9: "b:1"}, {3: "c:1", 7: "d:1"}], "[7]"),
        ([["a:1", "b:1"], {1: "c:1", 2: "d:1"}], "[1]"),
        ([{1: "c:1"}, ["a:1", "b:1"]], "[1]"),
    ],
)
def test_a_union_rejects_an_index_given_twice(parts, twice):
    resolver = UnionResolver(*[simple(tasks) for tasks in parts])

    with pytest.raises(KeyError, match=re.escape(f"Tasks {twice} of job 'worker'")):
        resolver.cluster_spec()


def test_a_union_takes_each_answer_from_the_first_that_has_one():
    first = simple(["a:1"], task_id=0, environment="cloud", num_accelerators={"GPU": 8})
    second = simple(["b:1"], task_type="worker", task_id=1, rpc_layer="grpc", environment="x")
    union = UnionResolver(first, second)

    assert (union.task_type, union.task_id, union.rpc_layer) == ("worker", 0, "grpc")
    assert (union.environment, union.num_accelerators()) == ("cloud", {"GPU": 8})
    assert (union.coordinator_address, union.process_id, union.num_processes) == ("a:1", 0, 2)
    assert union.master() == ""
    assert union.master("worker", 1) == "grpc://b:1"


def test_a_union_can_override_even_with_zero():
    union = UnionResolver(
        simple(["a:1", "b:1"], task_type="ps", task_id=1, rpc_layer="grpc"),
        task_type="worker",
        task_id=0,
        rpc_layer="http",
    )

    assert (union.task_type, union.task_id, union.rpc_layer) == ("worker", 0, "http")


def test_a_union_needs_resolvers():
    assert UnionClusterResolver is UnionResolver
    with pytest.raises(ValueError, match="at least one"):
        UnionResolver()
    with pytest.raises(TypeError, match="got ClusterSpec"):
        UnionResolver(SPEC)
