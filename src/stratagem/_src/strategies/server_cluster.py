"""Validates the cluster and the task of a ``ParameterServerStrategy``."""

from __future__ import annotations

from typing import Any

from stratagem._src.cluster import ClusterResolver, ClusterSpec
from stratagem._src.cluster.errors import ClusterSpecError, TaskError
from stratagem._src.cluster.resolvers.tf_config_cluster_resolver import TFConfigClusterResolver
from stratagem._src.core.errors import InvalidArgumentError

__all__ = ["check_server_cluster", "cluster_of_environment", "server_addresses"]

_JOBS = ("chief", "worker", "ps", "evaluator")


def cluster_of_environment() -> ClusterResolver:
    """Returns the resolver of the cluster that ``TF_CONFIG`` describes.

    Other launchers' variables describe equal processes, which have no parameter servers.

    Raises:
        ClusterSpecError: If ``TF_CONFIG`` describes no cluster.
    """
    resolver = TFConfigClusterResolver()
    if not resolver.cluster_spec():
        raise ClusterSpecError(
            "ParameterServerStrategy() reads the cluster from TF_CONFIG, which describes none. Start the "
            "program with `stratagem run --chief --workers 2 --ps 1 script.py`, which sets it, or pass a "
            "cluster resolver."
        )
    return resolver


def check_server_cluster(resolver: Any) -> ClusterSpec:
    """Returns the cluster of a resolver, after checking its jobs and that this task is its coordinator.

    Raises:
        InvalidArgumentError: If it is not a resolver.
        ClusterSpecError: If jobs are missing or unknown, or there are several coordinators.
        TaskError: If this task is not part of the cluster, or not its coordinator.
    """
    if not isinstance(resolver, ClusterResolver):
        raise InvalidArgumentError(
            f"cluster_resolver must be a ClusterResolver, got {resolver!r}. Use for example "
            "TFConfigClusterResolver(), or SimpleClusterResolver(ClusterSpec({...}))."
        )
    cluster = resolver.cluster_spec()
    _check_jobs(cluster)
    _check_task(cluster, resolver.task_type, resolver.task_id)
    return cluster


def server_addresses(cluster: ClusterSpec) -> list[str]:
    """Returns the addresses of the parameter servers, in index order.

    Raises:
        ClusterSpecError: If there are none, or an address is missing.
    """
    addresses = cluster.job_tasks("ps")
    missing = [index for index, address in enumerate(addresses) if address is None]
    if missing or not addresses:
        raise ClusterSpecError(
            "ParameterServerStrategy needs every parameter server's address, but the cluster spec has "
            f"none for ps {missing or 0}."
        )
    return [address for address in addresses if address is not None]


def _check_jobs(cluster: ClusterSpec) -> None:
    for job, does in (("ps", "holds variables"), ("worker", "runs steps")):
        if job not in cluster.jobs:
            raise ClusterSpecError(
                f"ParameterServerStrategy needs a cluster with a job {job!r}, which {does}, got the "
                f"jobs {sorted(cluster.jobs)}. Add {job!r} to the cluster spec."
            )
    foreign = sorted(set(cluster.jobs) - set(_JOBS))
    if foreign:
        raise ClusterSpecError(
            f"The jobs of a cluster with parameter servers must be among {list(_JOBS)}, got {foreign}. "
            "Leave out other tasks."
        )
    for job in ("chief", "evaluator"):
        if job in cluster.jobs and cluster.num_tasks(job) > 1:
            raise ClusterSpecError(
                f"A cluster must have at most one {job}, got {cluster.num_tasks(job)}: "
                f"{cluster.as_dict()[job]}."
            )


def _check_task(cluster: ClusterSpec, task_type: str | None, task_id: int | None) -> None:
    if task_type is None:
        return
    if task_type not in _JOBS:
        raise TaskError(f"The task type must be one of {list(_JOBS)}, got {task_type!r}.")
    if task_type != "chief":
        raise TaskError(
            f"ParameterServerStrategy must be created by the coordinator, but this task is {task_type} "
            f"{task_id}. Call distribute.Server.serve_task() before it: a worker or parameter server "
            "serves there until the job ends."
        )
    if task_type not in cluster.jobs:
        raise TaskError(
            f"This task is {task_type} {task_id}, but the cluster has only the jobs "
            f"{sorted(cluster.jobs)}. Add the task to the cluster spec, or leave out the task type."
        )
    if task_id is not None:
        cluster.task_address(task_type, task_id)
