"""Cluster specs, and resolvers that find the cluster and the task of this process."""

from typing import TYPE_CHECKING

from stratagem._src.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from stratagem._src.cluster.address import Address
    from stratagem._src.cluster.cluster_def import ClusterDef, JobDef, ServerDef
    from stratagem._src.cluster.cluster_spec import ClusterSpec
    from stratagem._src.cluster.errors import (
        CloudError,
        CloudResourceNotFoundError,
        ClusterSpecError,
        EnvironmentVariableError,
        MissingVariableError,
        SlurmAllocationError,
        TaskError,
        UnknownAddressesError,
        UnsupportedTPUFeatureError,
    )
    from stratagem._src.cluster.leadership import (
        Task,
        is_leader,
        leader_task,
        num_workers,
        process_id,
        validate_task,
        worker_tasks,
    )
    from stratagem._src.cluster.resolve import ResolvedCluster, resolve_cluster
    from stratagem._src.cluster.resolvers.cluster_resolver import ClusterResolver
    from stratagem._src.cluster.resolvers.coordinator_only_resolver import CoordinatorOnlyResolver
    from stratagem._src.cluster.resolvers.gce_cluster_resolver import GCEClusterResolver
    from stratagem._src.cluster.resolvers.jax_cluster_resolver import JaxClusterResolver
    from stratagem._src.cluster.resolvers.kubernetes_cluster_resolver import (
        KubernetesClusterResolver,
        KubernetesExecutableLocation,
    )
    from stratagem._src.cluster.resolvers.open_mpi_cluster_resolver import OpenMPIClusterResolver
    from stratagem._src.cluster.resolvers.ray_cluster_resolver import RayClusterResolver
    from stratagem._src.cluster.resolvers.simple_cluster_resolver import SimpleClusterResolver
    from stratagem._src.cluster.resolvers.slurm_cluster_resolver import SlurmClusterResolver
    from stratagem._src.cluster.resolvers.slurm_expressions import (
        expand_host_list,
        expand_tasks_per_node,
    )
    from stratagem._src.cluster.resolvers.tf_config_cluster_resolver import TFConfigClusterResolver
    from stratagem._src.cluster.resolvers.torchrun_cluster_resolver import TorchrunClusterResolver
    from stratagem._src.cluster.resolvers.tpu_cluster_resolver import TPUClusterResolver
    from stratagem._src.cluster.resolvers.tpu_system_metadata import TPUSystemMetadata
    from stratagem._src.cluster.resolvers.union_resolver import UnionClusterResolver, UnionResolver

__all__ = [
    "Address",
    "CloudError",
    "CloudResourceNotFoundError",
    "ClusterDef",
    "ClusterResolver",
    "ClusterSpec",
    "ClusterSpecError",
    "CoordinatorOnlyResolver",
    "EnvironmentVariableError",
    "GCEClusterResolver",
    "JaxClusterResolver",
    "JobDef",
    "KubernetesClusterResolver",
    "KubernetesExecutableLocation",
    "MissingVariableError",
    "OpenMPIClusterResolver",
    "RayClusterResolver",
    "ResolvedCluster",
    "ServerDef",
    "SimpleClusterResolver",
    "SlurmAllocationError",
    "SlurmClusterResolver",
    "TFConfigClusterResolver",
    "TPUClusterResolver",
    "TPUSystemMetadata",
    "Task",
    "TaskError",
    "TorchrunClusterResolver",
    "UnionClusterResolver",
    "UnionResolver",
    "UnknownAddressesError",
    "UnsupportedTPUFeatureError",
    "expand_host_list",
    "expand_tasks_per_node",
    "is_leader",
    "leader_task",
    "num_workers",
    "process_id",
    "resolve_cluster",
    "validate_task",
    "worker_tasks",
]

# Loaded on first use: a process needs one resolver at most.
_MODULES = {
    "address": ("Address",),
    "cluster_spec": ("ClusterSpec",),
    "cluster_def": (
        "ClusterDef",
        "JobDef",
        "ServerDef",
    ),
    "errors": (
        "CloudError",
        "CloudResourceNotFoundError",
        "ClusterSpecError",
        "EnvironmentVariableError",
        "MissingVariableError",
        "SlurmAllocationError",
        "TaskError",
        "UnknownAddressesError",
        "UnsupportedTPUFeatureError",
    ),
    "leadership": (
        "Task",
        "is_leader",
        "leader_task",
        "num_workers",
        "process_id",
        "validate_task",
        "worker_tasks",
    ),
    "resolve": (
        "ResolvedCluster",
        "resolve_cluster",
    ),
    "resolvers.cluster_resolver": ("ClusterResolver",),
    "resolvers.coordinator_only_resolver": ("CoordinatorOnlyResolver",),
    "resolvers.gce_cluster_resolver": ("GCEClusterResolver",),
    "resolvers.jax_cluster_resolver": ("JaxClusterResolver",),
    "resolvers.kubernetes_cluster_resolver": (
        "KubernetesClusterResolver",
        "KubernetesExecutableLocation",
    ),
    "resolvers.open_mpi_cluster_resolver": ("OpenMPIClusterResolver",),
    "resolvers.ray_cluster_resolver": ("RayClusterResolver",),
    "resolvers.simple_cluster_resolver": ("SimpleClusterResolver",),
    "resolvers.slurm_cluster_resolver": ("SlurmClusterResolver",),
    "resolvers.slurm_expressions": (
        "expand_host_list",
        "expand_tasks_per_node",
    ),
    "resolvers.tf_config_cluster_resolver": ("TFConfigClusterResolver",),
    "resolvers.torchrun_cluster_resolver": ("TorchrunClusterResolver",),
    "resolvers.tpu_cluster_resolver": ("TPUClusterResolver",),
    "resolvers.tpu_system_metadata": ("TPUSystemMetadata",),
    "resolvers.union_resolver": (
        "UnionClusterResolver",
        "UnionResolver",
    ),
}

if not TYPE_CHECKING:
    __getattr__ = lazy_names(
        __name__,
        {
            name: (f"stratagem._src.cluster.{module}", name)
            for module, names in _MODULES.items()
            for name in names
        },
    )
