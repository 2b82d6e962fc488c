"""``experimental_connect_to_cluster``."""

from __future__ import annotations

from typing import Any

import jax

from stratagem._src.cluster.resolvers.cluster_resolver import check_task_of
from stratagem._src.control_plane.join import join_cluster

__all__ = ["experimental_connect_to_cluster"]


def experimental_connect_to_cluster(cluster_spec_or_resolver: Any = None) -> None:
    """Makes the devices of all processes of a cluster visible to JAX; a no-op for a single process.

    Every process of the cluster calls it before the JAX backend is initialized. It does nothing if
    ``jax.distributed`` is already initialized; strategies cannot use the devices of other processes then,
    because there is no failure detection for them. ``TPUStrategy`` calls it by itself.

    Differs from tf.distribute: every process runs the program, so each needs a resolver that knows its
    task. There is no master device, protocol or device filter to choose.

    Args:
        cluster_spec_or_resolver: A cluster resolver.

    Raises:
        ValueError: If it is not a cluster resolver.
        UnavailableError: If another process does not start in time.

    JAX equivalent: ``jax.distributed.initialize``.
    """
    resolver = cluster_spec_or_resolver
    if not hasattr(resolver, "num_processes"):
        raise ValueError(
            f"experimental_connect_to_cluster needs a cluster resolver, got {resolver!r}. Create one from "
            "a ClusterSpec with SimpleClusterResolver(cluster_spec, task_type=..., task_id=...)."
        )
    check_task_of(resolver)
    if jax.distributed.is_initialized() or resolver.num_processes == 1:
        return
    join_cluster(resolver)
