"""``define_server``: normalizes the arguments of ``Server`` to a ``ServerDef``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stratagem._src.cluster.cluster_def import ClusterDef, ServerDef
from stratagem._src.cluster.cluster_spec import ClusterSpec
from stratagem._src.cluster.errors import TaskError
from stratagem._src.core.errors import InvalidArgumentError

__all__ = ["PROTOCOLS", "check_protocol", "define_server"]

PROTOCOLS = ("grpc", "grpc+tls")


def define_server(
    server_or_cluster: ServerDef | ClusterDef | ClusterSpec | Mapping[str, Any],
    job_name: str | None,
    task_index: int | None,
    protocol: str | None,
) -> ServerDef:
    """Returns the definition of one task's server, with defaults filled in.

    >>> from stratagem.train import ClusterSpec
    >>> from stratagem._src.parameter_server.task_server.task_definition import define_server
    >>> spec = ClusterSpec({"ps": ["ps0:2222", "ps1:2222"]})
    >>> define_server(spec, None, 1, None).job_name
    'ps'

    Raises:
        TaskError: If the cluster has no such task, or the task is ambiguous.
        InvalidArgumentError: If the protocol is not one of ``PROTOCOLS``.
    """
    if isinstance(server_or_cluster, ServerDef):
        given = server_or_cluster
        cluster = ClusterSpec(given.cluster)
        job_name = given.job_name if job_name is None else job_name
        task_index = given.task_index if task_index is None else task_index
        protocol = given.protocol if protocol is None else protocol
    else:
        cluster = ClusterSpec(server_or_cluster)
    job_name = _only_job(cluster) if job_name is None else job_name
    task_index = _only_task(cluster, job_name) if task_index is None else task_index
    cluster.task_address(job_name, task_index)
    return ServerDef(
        cluster.as_cluster_def(), job_name, task_index, check_protocol(protocol or PROTOCOLS[0])
    )


def check_protocol(protocol: str) -> str:
    """Returns a protocol if it is one of ``PROTOCOLS``, and raises otherwise."""
    if protocol not in PROTOCOLS:
        raise InvalidArgumentError(f"protocol must be one of {list(PROTOCOLS)}, got {protocol!r}.")
    return protocol


def _only_job(cluster: ClusterSpec) -> str:
    if len(cluster.jobs) != 1:
        raise TaskError(
            f"job_name must be given unless the cluster has a single job, got the jobs {cluster.jobs}."
        )
    return cluster.jobs[0]


def _only_task(cluster: ClusterSpec, job_name: str) -> int:
    tasks = cluster.task_indices(job_name)
    if len(tasks) != 1:
        raise TaskError(
            f"task_index must be given unless the job has a single task, got job {job_name!r} with "
            f"the tasks {tasks}."
        )
    return tasks[0]
