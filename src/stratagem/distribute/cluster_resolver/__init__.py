"""Cluster resolvers, which read the cluster from the environment or a cluster manager."""

from stratagem._src.cluster import (
    ClusterResolver,
    GCEClusterResolver,
    JaxClusterResolver,
    KubernetesClusterResolver,
    KubernetesExecutableLocation,
    OpenMPIClusterResolver,
    RayClusterResolver,
    SimpleClusterResolver,
    SlurmClusterResolver,
    TFConfigClusterResolver,
    TorchrunClusterResolver,
    TPUClusterResolver,
    UnionResolver,
    resolve_cluster,
)

__all__ = [
    "ClusterResolver",
    "GCEClusterResolver",
    "JaxClusterResolver",
    "KubernetesClusterResolver",
    "KubernetesExecutableLocation",
    "OpenMPIClusterResolver",
    "RayClusterResolver",
    "SimpleClusterResolver",
    "SlurmClusterResolver",
    "TFConfigClusterResolver",
    "TPUClusterResolver",
    "TorchrunClusterResolver",
    "UnionResolver",
    "resolve_cluster",
]
