"""Joining the processes of a cluster."""

from __future__ import annotations

from typing import Any

import jax

from stratagem._src.cluster.resolvers.cluster_resolver import check_task_of
from stratagem._src.control_plane.join import join_cluster

__all__ = ["experimental_connect_to_cluster"]


def experimental_connect_to_cluster(cluster_spec_or_resolver: Any = None) -> None:
    """Makes JAX see the devices of every process of a cluster; nothing to do for one process.

    Each process of the cluster calls it, before the JAX backend starts. It does nothing where
    ``jax.distributed`` runs already; strategies cannot use the devices of other processes then, because
    nobody watches over these. ``TPUStrategy`` calls it by itself.

    Differs from tf.distribute: every process runs the program, so each needs a resolver that says which
    one it is. There is no master device, protocol or device filter to choose.

    Args:
        cluster_spec_or_resolver: A cluster resolver.

    Raises:
        ValueError: If it is something else.
        UnavailableError: If another process does not come in time.

    JAX equivalent: ``jax.distributed.initialize``.
    """
    resolver = cluster_spec_or_resolver
    if not hasattr(resolver, "num_processes"):
        raise ValueError(
            f"experimental_connect_to_cluster needs a cluster resolver, got {resolver!r}. Make one of a "
            "ClusterSpec with SimpleClusterResolver(cluster_spec, task_type=..., task_id=...)."
        )
    check_task_of(resolver)
    if jax.distributed.is_initialized() or resolver.num_processes == 1:
        return
    join_cluster(resolver)
