import pytest

from stratagem._src.cluster import (
    ClusterSpec,
    Task,
    TaskError,
    is_leader,
    leader_task,
    num_workers,
    process_id,
    validate_task,
    worker_tasks,
)

EMPTY = ClusterSpec({})
WORKERS = ClusterSpec({"worker": ["w0:1", "w1:1"]})
FULL = ClusterSpec(
    {"ps": ["p:1"], "worker": ["w0:1", "w1:1"], "evaluator": ["e:1"], "chief": ["c:1"]}
)


@pytest.mark.parametrize(
    ("spec", "task_type", "task_id", "leads", "number", "together"),
    [
        (EMPTY, None, None, True, 0, 1),
        (WORKERS, "worker", 0, True, 0, 2),
        (WORKERS, "worker", 1, False, 1, 2),
        (WORKERS, "evaluator", 0, True, 0, 1),
        (FULL, "chief", 0, True, 0, 3),
        (FULL, "worker", 0, False, 1, 3),
        (FULL, "worker", 1, False, 2, 3),
        (FULL, "evaluator", 0, True, 0, 1),
    ],
)
def test_who_leads_and_which_process_is_which(spec, task_type, task_id, leads, number, together):
    assert is_leader(spec, task_type, task_id) is leads
    assert process_id(spec, task_type, task_id) == number
    assert num_workers(spec, task_type) == together


def test_the_leader_is_the_chief_else_worker_0():
    assert leader_task(FULL) == Task("chief", 0)
    assert leader_task(WORKERS) == Task("worker", 0)
    with pytest.raises(TaskError, match=r"chief or a worker.*\['ps'\]"):
        leader_task(ClusterSpec({"ps": ["p:1"]}))


def test_a_ps_never_leads_and_has_no_process_number():
    assert not is_leader(FULL, "ps", 0)
    with pytest.raises(TaskError, match="got ps 0"):
        process_id(FULL, "ps", 0)


def test_processes_cannot_be_numbered_while_some_are_unknown():
    with pytest.raises(TaskError, match=r"'worker'.*only \[1\]"):
        worker_tasks(ClusterSpec({"worker": {1: "w1:1"}}))


@pytest.mark.parametrize(
    ("spec", "task_type", "task_id", "said"),
    [
        (ClusterSpec({"chief": ["a:1", "b:1"]}), "chief", 0, "at most one 'chief', got 2"),
        (ClusterSpec({"evaluator": ["a:1", "b:1"]}), "evaluator", 0, "at most one 'evaluator'"),
        (WORKERS, None, None, "task_type must be one of .*got None"),
        (WORKERS, "master", 0, "got 'master'"),
        (WORKERS, "worker", None, "task_id must be set"),
        (WORKERS, "worker", 2, r"job 'worker', got 2. Its tasks are \[0, 1\]"),
        (WORKERS, "worker", -1, "got -1"),
        (WORKERS, "chief", 0, r"one of \['worker'\], got 'chief'"),
    ],
)
def test_tasks_that_are_not_in_the_cluster_are_rejected(spec, task_type, task_id, said):
    with pytest.raises(TaskError, match=said):
        validate_task(spec, task_type, task_id)
    with pytest.raises(TaskError):
        is_leader(spec, task_type, task_id)
    with pytest.raises(TaskError):
        process_id(spec, task_type, task_id)
