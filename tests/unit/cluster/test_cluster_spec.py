import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratagem._src.cluster import (
    Address,
    ClusterDef,
    ClusterSpec,
    ClusterSpecError,
    JobDef,
    ServerDef,
    TaskError,
)
from stratagem._src.core.errors import StratagemError

JOBS = {"worker": ["w0:1", "w1:2"], "ps": {1: "p1:3", 4: "p4:4"}}


@pytest.mark.parametrize(
    "cluster",
    [
        JOBS,
        {"worker": ("w0:1", "w1:2"), "ps": {"4": "p4:4", "1": "p1:3"}},
        {"worker": {1: "w1:2", 0: "w0:1"}, "ps": {4: "p4:4", 1: "p1:3"}},
        ClusterSpec(JOBS),
        ClusterSpec(JOBS).as_cluster_def(),
        ClusterSpec(JOBS).as_dict(),
    ],
)
def test_every_way_to_describe_a_cluster_gives_the_same(cluster):
    spec = ClusterSpec(cluster)

    assert spec == ClusterSpec(JOBS)
    assert hash(spec) == hash(ClusterSpec(JOBS))
    assert spec.as_dict() == JOBS


def test_it_answers_about_jobs_and_tasks():
    spec = ClusterSpec(JOBS)

    assert spec.jobs == ["worker", "ps"]
    assert (spec.num_tasks("worker"), spec.num_tasks("ps")) == (2, 2)
    assert spec.task_indices("ps") == [1, 4]
    assert spec.task_address("ps", 4) == "p4:4"
    assert spec.job_tasks("worker") == ["w0:1", "w1:2"]
    assert spec.job_tasks("ps") == [None, "p1:3", None, None, "p4:4"]


def test_as_cluster_def_sorts_jobs_by_name():
    assert ClusterSpec(JOBS).as_cluster_def() == ClusterDef(
        (JobDef("ps", {1: "p1:3", 4: "p4:4"}), JobDef("worker", {0: "w0:1", 1: "w1:2"}))
    )


def test_an_empty_cluster_and_an_empty_job():
    assert not ClusterSpec({})
    assert ClusterSpec({"worker": []})
    assert ClusterSpec({"worker": []}).as_dict() == {"worker": {}}
    assert ClusterSpec({"worker": []}).job_tasks("worker") == []


def test_clusters_differ_by_address_index_and_job():
    spec = ClusterSpec({"worker": ["w0:1"]})
    others = [{"worker": ["w0:2"]}, {"worker": {1: "w0:1"}}, {"ps": ["w0:1"]}, {}]

    assert all(spec != ClusterSpec(other) for other in others)
    assert spec != "ClusterSpec"


def test_what_a_caller_does_with_its_answers_does_not_change_it():
    spec = ClusterSpec(JOBS)

    spec.as_dict()["worker"].append("w2:1")
    spec.as_dict()["ps"].clear()
    spec.jobs.clear()
    spec.as_cluster_def().job[0].tasks.clear()

    assert spec == ClusterSpec(JOBS)


def test_definitions_and_specs_survive_pickling():
    server = ServerDef(ClusterSpec(JOBS).as_cluster_def(), job_name="ps", task_index=4)

    assert pickle.loads(pickle.dumps(server)) == server
    assert pickle.loads(pickle.dumps(ClusterSpec(JOBS))) == ClusterSpec(JOBS)


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda spec: spec.num_tasks("chief"), r"got 'chief'. Its jobs are \['worker', 'ps'\]"),
        (lambda spec: spec.task_indices("chief"), "got 'chief'"),
        (lambda spec: spec.job_tasks("chief"), "got 'chief'"),
        (lambda spec: spec.task_address("ps", 2), r"job 'ps', got 2. Its tasks are \[1, 4\]"),
    ],
)
def test_a_job_or_task_that_is_not_there_is_named(ask, said):
    with pytest.raises(TaskError, match=said):
        ask(ClusterSpec(JOBS))


@pytest.mark.parametrize(
    ("cluster", "error", "said"),
    [
        ([("worker", ["w0:1"])], TypeError, "must be a dictionary"),
        ({"worker": "w0:1"}, TypeError, "job 'worker' must be a list"),
        ({"worker": 3}, TypeError, "job 'worker' must be a list"),
        ({"worker": [None]}, TypeError, "task 0 of job 'worker' must be a string, got None"),
        ({3: ["w0:1"]}, TypeError, "job name must be a string, got 3"),
        ({"": ["w0:1"]}, ClusterSpecError, "must not be empty"),
        ({"worker": {-1: "w0:1"}}, ClusterSpecError, "whole number >= 0, got -1"),
        ({"worker": {True: "w0:1"}}, ClusterSpecError, "got True"),
        ({"worker": {"one": "w0:1"}}, ClusterSpecError, "got 'one'"),
        ({"ps": ["w0:1", "w1"]}, ClusterSpecError, "Task 1 of job 'ps'.*host:port, got 'w1'"),
    ],
)
def test_malformed_clusters_are_rejected(cluster, error, said):
    with pytest.raises(error, match=said):
        ClusterSpec(cluster)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("localhost:0", "localhost", 0),
        ("10.0.0.1:65535", "10.0.0.1", 65535),
        ("my_host-7.example.com:22", "my_host-7.example.com", 22),
        ("[::1]:80", "::1", 80),
        ("[fe80::1%eth0]:80", "fe80::1%eth0", 80),
    ],
)
def test_addresses(text, host, port):
    address = Address.parse(text)

    assert (address.host, address.port) == (host, port)
    assert str(address) == text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "host:port"),
        ("host", "host:port"),
        (":80", "host"),
        ("host:", "host:port"),
        ("host:80x", "host:port"),
        ("host:-1", "host:port"),
        ("host:65536", "0 to 65535, got 65536"),
        ("host:" + "9" * 5000, "host:port"),
        ("host:\N{SUPERSCRIPT TWO}", "host:port"),
        ("grpc://host:80", "Use 'host:80'"),
        ("::1:80", "brackets"),
        ("[host]:80", "IPv6"),
        ("[::1:80", "brackets"),
        ("ho st:80", "host"),
        ("host/x:80", "host"),
        ("-host:80", "host"),
    ],
)
def test_malformed_addresses_are_rejected(text, said):
    with pytest.raises(ClusterSpecError, match=said):
        Address.parse(text)


@given(st.text())
def test_any_text_is_an_address_or_rejected(text):
    try:
        address = Address.parse(text)
    except ClusterSpecError:
        return
    assert Address.parse(str(address)) == address


def test_errors_are_both_ours_and_the_builtin_ones():
    assert issubclass(ClusterSpecError, ValueError)
    assert issubclass(TaskError, ValueError)
    assert issubclass(TaskError, StratagemError)
