"""``initialize_tpu_system`` and ``shutdown_tpu_system``."""

from __future__ import annotations

import jax

from stratagem._src.cluster.resolvers.tpu_cluster_resolver import TPUClusterResolver
from stratagem._src.cluster.resolvers.tpu_system_metadata import attached_devices
from stratagem._src.control_plane.connect_to_cluster import experimental_connect_to_cluster
from stratagem._src.core.errors import ContextError
from stratagem._src.jax_compat.tracing import under_trace
from stratagem._src.mesh.tpu_topology import Topology

__all__ = ["initialize_tpu_system", "shutdown_tpu_system", "tpu_devices"]


def initialize_tpu_system(cluster_resolver: TPUClusterResolver | None = None) -> Topology:
    """Initializes JAX on the TPU and returns the topology of its cores.

    JAX initializes a TPU by itself, so this only joins the hosts, if there are several, and lists the
    cores.

    Args:
        cluster_resolver: The resolver of the TPU; default: the TPU that JAX finds.

    Raises:
        CloudError: If JAX finds no TPU.
        ContextError: Inside a compiled function.

    >>> import stratagem as sg
    >>> resolver = sg.distribute.cluster_resolver.TPUClusterResolver("local", platform="cpu")
    >>> topology = initialize_tpu_system(resolver)  # virtual CPU devices stand in for TPU cores
    >>> topology.mesh_rank
    4
    """
    _check_not_traced("initialize_tpu_system")
    return Topology(tpu_devices(cluster_resolver))


def shutdown_tpu_system(cluster_resolver: TPUClusterResolver | None = None) -> None:
    """Clears JAX's compilation caches. The TPU itself is released when the process ends.

    Differs from tf.distribute: variables keep their values and devices can still be used.

    Args:
        cluster_resolver: Accepted for compatibility: the caches are those of the process.

    Raises:
        ContextError: Inside a compiled function.

    >>> shutdown_tpu_system()
    """
    _check_not_traced("shutdown_tpu_system")
    jax.clear_caches()


def tpu_devices(cluster_resolver: TPUClusterResolver | None) -> list[jax.Device]:
    """Joins the hosts and returns the TPU cores of all of them, host by host.

    Raises:
        CloudError: If JAX finds no TPU.
    """
    platform = "tpu"
    if cluster_resolver is not None:
        experimental_connect_to_cluster(cluster_resolver)
        platform = cluster_resolver.platform
    return sorted(attached_devices(platform), key=lambda device: device.process_index)


def _check_not_traced(caller: str) -> None:
    if under_trace():
        raise ContextError(
            f"{caller}() cannot be called inside a compiled function. Call it at the start of the "
            "program."
        )
