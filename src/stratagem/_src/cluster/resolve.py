"""``resolve_cluster``: selects the resolver for the environment."""

from __future__ import annotations

import os
from dataclasses import dataclass

from stratagem._src.cluster.environment_variables import first_set, is_set
from stratagem._src.cluster.resolvers.cluster_resolver import ClusterResolver
from stratagem._src.cluster.resolvers.jax_cluster_resolver import JaxClusterResolver
from stratagem._src.cluster.resolvers.kubernetes_cluster_resolver import KubernetesClusterResolver
from stratagem._src.cluster.resolvers.open_mpi_cluster_resolver import OpenMPIClusterResolver
from stratagem._src.cluster.resolvers.slurm_cluster_resolver import SlurmClusterResolver
from stratagem._src.cluster.resolvers.tf_config_cluster_resolver import TFConfigClusterResolver
from stratagem._src.cluster.resolvers.torchrun_cluster_resolver import TorchrunClusterResolver
from stratagem._src.cluster.resolvers.tpu_cluster_resolver import TPUClusterResolver

__all__ = ["ResolvedCluster", "resolve_cluster"]


@dataclass(frozen=True)
class ResolvedCluster:
    """The selected resolver, if any, and the reason.

    >>> from stratagem._src.cluster import ResolvedCluster
    >>> ResolvedCluster(None, "no launcher has set its variables").resolver is None
    True
    """

    resolver: ClusterResolver | None
    reason: str


def resolve_cluster() -> ResolvedCluster:
    """Returns the resolver for the launcher that started this process, and why it was chosen.

    It only reads environment variables, in this order: ``TF_CONFIG``, Open MPI, torchrun, JAX, Slurm, a
    TPU, an indexed Kubernetes job. Slurm comes after the launchers that are often started inside a Slurm
    step: they leave Slurm's variables unchanged, which then describe the launchers, not the processes.

    >>> import os
    >>> from unittest import mock
    >>> from stratagem.distribute.cluster_resolver import resolve_cluster
    >>> variables = dict(RANK="0", WORLD_SIZE="2", MASTER_ADDR="node0", MASTER_PORT="29500")
    >>> with mock.patch.dict(os.environ, variables, clear=True):
    ...     found = resolve_cluster()
    >>> type(found.resolver).__name__, found.reason
    ('TorchrunClusterResolver', 'RANK, WORLD_SIZE and MASTER_ADDR are set, as torchrun does')

    Raises:
        EnvironmentVariableError: If ``TF_CONFIG`` is set and malformed.
    """
    from_tf_config = TFConfigClusterResolver()
    if from_tf_config.cluster_spec():
        return ResolvedCluster(from_tf_config, "TF_CONFIG describes a cluster")
    if is_set("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"):
        return ResolvedCluster(
            OpenMPIClusterResolver(),
            "OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE are set, as Open MPI's mpirun does",
        )
    if is_set("RANK", "WORLD_SIZE", "MASTER_ADDR"):
        return ResolvedCluster(
            TorchrunClusterResolver(),
            "RANK, WORLD_SIZE and MASTER_ADDR are set, as torchrun does",
        )
    if is_set("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES"):
        return ResolvedCluster(
            JaxClusterResolver(), "JAX_COORDINATOR_ADDRESS and JAX_NUM_PROCESSES are set"
        )
    if is_set("SLURM_PROCID", "SLURM_STEP_NODELIST"):
        return ResolvedCluster(
            SlurmClusterResolver(),
            "SLURM_PROCID and SLURM_STEP_NODELIST are set, as Slurm's srun does",
        )
    hosts = first_set("TPU_PROCESS_ADDRESSES", "TPU_WORKER_HOSTNAMES")
    if hosts is not None and is_set("TPU_WORKER_ID"):
        return ResolvedCluster(
            TPUClusterResolver(), f"TPU_WORKER_ID and {hosts} are set, as on the hosts of a TPU"
        )
    job_name = _indexed_job_name()
    if job_name is not None:
        from_kubernetes = KubernetesClusterResolver({"worker": [f"job-name={job_name}"]})
        from_kubernetes.task_type = "worker"
        from_kubernetes.task_id = int(os.environ["JOB_COMPLETION_INDEX"])
        return ResolvedCluster(
            from_kubernetes,
            f"JOB_COMPLETION_INDEX and HOSTNAME are those of the indexed Kubernetes job {job_name}",
        )
    return ResolvedCluster(
        None,
        "neither TF_CONFIG nor the variables of Open MPI, torchrun, JAX, Slurm, a TPU or an "
        "indexed Kubernetes job are set",
    )


def _indexed_job_name() -> str | None:
    if not is_set("KUBERNETES_SERVICE_HOST", "JOB_COMPLETION_INDEX", "HOSTNAME"):
        return None
    # Kubernetes names the pods of an indexed job after the job and the index.
    job_name, _, index = os.environ["HOSTNAME"].rpartition("-")
    is_index = index.isascii() and index.isdigit() and len(index) <= 9
    return job_name if is_index and index == os.environ["JOB_COMPLETION_INDEX"] else None
