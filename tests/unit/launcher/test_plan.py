"""From counts to tasks, addresses, environments and completion."""

import json

import pytest

from stratagem._src.cluster import ClusterSpec, Task, is_leader, validate_task
from stratagem._src.cluster.errors import EnvironmentVariableError, LaunchError
from stratagem._src.launcher.cluster_plan import NodeOffer, plan_cluster
from stratagem._src.launcher.completion import job_is_done
from stratagem._src.launcher.node_runner import task_environment
from stratagem._src.launcher.task_counts import TaskCounts
from stratagem._src.transport.secret import job_secret, read_secret


def offer(node, ports, **counts):
    return NodeOffer(node, f"host{node}", TaskCounts(**counts), ports)


def test_one_node_with_every_job():
    plan = plan_cluster([offer(0, (1, 2, 3, 4), workers=2, ps=1, chief=True, evaluator=True)])
    assert plan.cluster == {
        "chief": ["host0:1"],
        "worker": ["host0:2", "host0:3"],
        "ps": ["host0:4"],
    }
    names = [str(task) for task in plan.all_tasks]
    assert names == ["chief 0", "worker 0", "worker 1", "ps 0", "evaluator 0"]
    assert plan.shown_when_quiet == Task("chief", 0)


def test_every_task_is_valid_in_its_own_tf_config():
    plan = plan_cluster([offer(0, (1, 2), workers=2, evaluator=True)])
    for task in plan.all_tasks:
        config = json.loads(plan.tf_config(task))
        validate_task(
            ClusterSpec(config["cluster"]), config["task"]["type"], config["task"]["index"]
        )
    assert is_leader(ClusterSpec(plan.cluster), *plan.shown_when_quiet)


def test_tasks_are_numbered_across_nodes_by_rank_whatever_the_order_they_came():
    plan = plan_cluster(
        [
            offer(2, (9,), workers=0, ps=1),
            offer(1, (7, 8), workers=2),
            offer(0, (7,), workers=1),
        ]
    )
    assert plan.cluster["worker"] == ["host0:7", "host1:7", "host1:8"]
    assert plan.tasks[1] == (Task("worker", 1), Task("worker", 2))
    assert plan.tasks[2] == (Task("ps", 0),)


@pytest.mark.parametrize("job", ["chief", "evaluator"])
def test_two_nodes_must_not_both_bring_one(job):
    offers = [offer(node, (1, 2), **{job: True}) for node in (0, 3)]
    with pytest.raises(LaunchError, match=rf"at most one {job}, but nodes \[0, 3\]"):
        plan_cluster(offers)


def test_ipv6_hosts_get_brackets():
    plan = plan_cluster([NodeOffer(0, "::1", TaskCounts(), (5,))])
    assert plan.cluster == {"worker": ["[::1]:5"]}


@pytest.mark.parametrize("counts", [{"workers": -1}, {"ps": -2}, {"workers": 0}, {"workers": 1.5}])
def test_counts_that_cannot_be(counts):
    with pytest.raises(LaunchError):
        TaskCounts(**counts).check_not_empty()


CHIEF, W0, W1, PS, EVALUATOR = (
    Task("chief", 0),
    Task("worker", 0),
    Task("worker", 1),
    Task("ps", 0),
    Task("evaluator", 0),
)


@pytest.mark.parametrize(
    ("tasks", "succeeded", "done"),
    [
        ([W0, W1], [W0], False),
        ([W0, W1], [W0, W1], True),
        ([CHIEF, W0], [CHIEF], False),
        ([CHIEF, W0, PS], [W0], False),
        ([CHIEF, W0, PS], [CHIEF], True),
        ([W0, W1, PS], [W0], False),
        ([W0, W1, PS], [W0, W1], True),
        ([W0, EVALUATOR], [W0], False),
        ([CHIEF, PS, EVALUATOR], [CHIEF], False),
        ([PS], [], False),
        ([PS], [PS], True),
    ],
)
def test_when_a_job_is_done(tasks, succeeded, done):
    assert job_is_done(tasks, succeeded) is done


def test_environment_of_a_task_does_not_show_where_the_shared_secret_is():
    inherited = {"STRATAGEM_CLUSTER_SECRET_FILE": "/a", "STRATAGEM_CLUSTER_SECRET": "shared"}
    environment = task_environment(inherited, "{}", "of this job", None)
    assert environment["STRATAGEM_CLUSTER_SECRET"] == "of this job"
    assert "STRATAGEM_CLUSTER_SECRET_FILE" not in environment
    assert "JAX_NUM_CPU_DEVICES" not in environment
    assert inherited["STRATAGEM_CLUSTER_SECRET"] == "shared"


@pytest.mark.parametrize("own", [{}, {"GLIBC_TUNABLES": "glibc.malloc.check=1"}])
def test_a_task_gets_huge_pages_unless_its_memory_is_tuned_otherwise(own):
    environment = task_environment(own, "{}", "of this job", None)
    expected = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1", **own}
    assert environment["GLIBC_TUNABLES"] == expected["GLIBC_TUNABLES"]


def test_secret_from_the_environment_or_a_file(monkeypatch, tmp_path):
    (tmp_path / "secret").write_text("from a file, long enough\n")
    monkeypatch.setenv("STRATAGEM_CLUSTER_SECRET_FILE", str(tmp_path / "secret"))
    assert read_secret() == "from a file, long enough"
    monkeypatch.setenv("STRATAGEM_CLUSTER_SECRET", "directly given, long enough")
    assert read_secret() == "directly given, long enough"


def test_missing_unreadable_and_short_secrets_are_named_but_not_shown(monkeypatch, tmp_path):
    monkeypatch.delenv("STRATAGEM_CLUSTER_SECRET", raising=False)
    monkeypatch.delenv("STRATAGEM_CLUSTER_SECRET_FILE", raising=False)
    with pytest.raises(EnvironmentVariableError, match="STRATAGEM_CLUSTER_SECRET must hold"):
        read_secret()
    monkeypatch.setenv("STRATAGEM_CLUSTER_SECRET_FILE", str(tmp_path / "none"))
    with pytest.raises(EnvironmentVariableError, match="STRATAGEM_CLUSTER_SECRET_FILE must hold"):
        read_secret()
    monkeypatch.setenv("STRATAGEM_CLUSTER_SECRET", "hunter2")
    with pytest.raises(EnvironmentVariableError, match="at least 16 characters") as caught:
        read_secret()
    assert "hunter2" not in str(caught.value)


def test_job_secret_is_the_same_on_every_node_and_not_the_shared_one():
    assert job_secret("shared", "1") == job_secret("shared", "1")
    assert job_secret("shared", "1") != job_secret("shared", "2")
    assert "shared" not in job_secret("shared", "1")
