"""Determines the leader, the workers and the process ids of a cluster.

Pure functions of a ``ClusterSpec``: the leader is the chief, otherwise worker 0. A chief counts as a
worker and comes first. An evaluator is alone: its own leader, and its own single process.
"""

from __future__ import annotations

from typing import NamedTuple

from stratagem._src.cluster.cluster_spec import ClusterSpec
from stratagem._src.cluster.errors import TaskError

__all__ = [
    "Task",
    "is_leader",
    "leader_task",
    "num_workers",
    "process_id",
    "validate_task",
    "worker_tasks",
]

TASK_TYPES = ("chief", "worker", "ps", "evaluator")
_AT_MOST_ONE = ("chief", "evaluator")


class Task(NamedTuple):
    """One process of a cluster: its job and its index in that job.

    >>> from stratagem._src.cluster import Task
    >>> print(Task("worker", 2))
    worker 2
    """

    task_type: str
    task_id: int

    def __str__(self) -> str:
        return f"{self.task_type} {self.task_id}"


def validate_task(cluster_spec: ClusterSpec, task_type: str | None, task_id: int | None) -> None:
    """Raises unless the cluster is valid for training and has this task.

    An evaluator need not be listed, because nothing connects to it. Without a cluster, any task
    is valid: it is the only one.

    >>> from stratagem._src.cluster import validate_task
    >>> from stratagem.train import ClusterSpec
    >>> validate_task(ClusterSpec({"worker": ["w0:2222"]}), "ps", 0)
    Traceback (most recent call last):
    stratagem.errors.TaskError: task_type must be one of ['worker'], got 'ps'.

    Raises:
        TaskError: If the task is not in the cluster, or the cluster has two chiefs or evaluators.
    """
    for job_name in _AT_MOST_ONE:
        if job_name in cluster_spec.jobs and cluster_spec.num_tasks(job_name) > 1:
            raise TaskError(
                f"A cluster must have at most one {job_name!r}, "
                f"got {cluster_spec.num_tasks(job_name)}."
            )
    if not cluster_spec:
        return
    if task_type not in TASK_TYPES:
        raise TaskError(f"task_type must be one of {list(TASK_TYPES)}, got {task_type!r}.")
    if task_id is None:
        raise TaskError(f"task_id must be set if there is a cluster, got None ({task_type!r}).")
    if task_type == "evaluator" and "evaluator" not in cluster_spec.jobs:
        return
    if task_type not in cluster_spec.jobs:
        raise TaskError(f"task_type must be one of {cluster_spec.jobs}, got {task_type!r}.")
    if task_id not in cluster_spec.task_indices(task_type):
        raise TaskError(
            f"task_id must be a task of job {task_type!r}, got {task_id}. "
            f"Its tasks are {cluster_spec.task_indices(task_type)}."
        )


def worker_tasks(cluster_spec: ClusterSpec) -> list[Task]:
    """Returns the tasks that train, in process order: the chief, then the workers.

    >>> from stratagem._src.cluster import worker_tasks
    >>> from stratagem.train import ClusterSpec
    >>> spec = ClusterSpec({"worker": ["w0:1", "w1:1"], "chief": ["c:1"], "ps": ["p:1"]})
    >>> [str(task) for task in worker_tasks(spec)]
    ['chief 0', 'worker 0', 'worker 1']

    Raises:
        TaskError: If tasks are missing, so that the others cannot be numbered.
    """
    tasks = []
    for job_name in ("chief", "worker"):
        indices = cluster_spec.task_indices(job_name) if job_name in cluster_spec.jobs else []
        if indices != list(range(len(indices))):
            raise TaskError(
                f"Every task of job {job_name!r} must be known to number the processes, got only "
                f"{indices}. Give the addresses of all of them."
            )
        tasks += [Task(job_name, index) for index in indices]
    return tasks


def leader_task(cluster_spec: ClusterSpec) -> Task:
    """Returns the task that leads the cluster: the chief, else worker 0.

    >>> from stratagem._src.cluster import leader_task
    >>> from stratagem.train import ClusterSpec
    >>> leader_task(ClusterSpec({"ps": ["p:1"], "worker": ["w0:1", "w1:1"]}))
    Task(task_type='worker', task_id=0)

    Raises:
        TaskError: If the cluster has neither a chief nor a worker.
    """
    tasks = worker_tasks(cluster_spec)
    if not tasks:
        raise TaskError(
            f"A leader needs a chief or a worker in the cluster, got the jobs {cluster_spec.jobs}."
        )
    return tasks[0]


def is_leader(cluster_spec: ClusterSpec, task_type: str | None, task_id: int | None) -> bool:
    """Returns whether this task is the leader, which writes checkpoints, logs, and so on.

    >>> from stratagem._src.cluster import is_leader
    >>> from stratagem.train import ClusterSpec
    >>> is_leader(ClusterSpec({"chief": ["c:1"], "worker": ["w0:1"]}), "worker", 0)
    False
    """
    validate_task(cluster_spec, task_type, task_id)
    if not cluster_spec or task_type == "evaluator":
        return True
    return (task_type, task_id) == leader_task(cluster_spec)


def num_workers(cluster_spec: ClusterSpec, task_type: str | None) -> int:
    """Returns the number of processes that train together with a task of this type.

    >>> from stratagem._src.cluster import num_workers
    >>> from stratagem.train import ClusterSpec
    >>> spec = ClusterSpec({"chief": ["c:1"], "worker": ["w0:1"], "evaluator": ["e:1"]})
    >>> num_workers(spec, "worker"), num_workers(spec, "evaluator")
    (2, 1)
    """
    if not cluster_spec or task_type == "evaluator":
        return 1
    return len(worker_tasks(cluster_spec))


def process_id(cluster_spec: ClusterSpec, task_type: str | None, task_id: int | None) -> int:
    """Returns the index of this process among the processes that train together.

    JAX equivalent: ``process_id`` of ``jax.distributed.initialize``.

    >>> from stratagem._src.cluster import process_id
    >>> from stratagem.train import ClusterSpec
    >>> process_id(ClusterSpec({"chief": ["c:1"], "worker": ["w0:1", "w1:1"]}), "worker", 1)
    2

    Raises:
        TaskError: If the task does not train, as a ``ps`` does not.
    """
    validate_task(cluster_spec, task_type, task_id)
    if not cluster_spec or task_type == "evaluator":
        return 0
    for number, task in enumerate(worker_tasks(cluster_spec)):
        if task == (task_type, task_id):
            return number
    raise TaskError(
        f"Only a chief, worker or evaluator has a process number, got {task_type} {task_id}."
    )
