"""Warns if a single-process strategy is used in a job of several workers, which would not synchronize."""

from __future__ import annotations

import logging

from stratagem._src.cluster.errors import UnknownAddressesError
from stratagem._src.cluster.resolve import resolve_cluster
from stratagem._src.cluster.resolvers.cluster_resolver import ClusterResolver
from stratagem._src.cluster.resolvers.kubernetes_cluster_resolver import KubernetesClusterResolver
from stratagem._src.cluster.resolvers.tpu_cluster_resolver import TPUClusterResolver
from stratagem._src.control_plane.join import joined_cluster
from stratagem._src.core.errors import StratagemError

__all__ = ["warn_if_unsynchronized"]

_logger = logging.getLogger("stratagem")
# These resolvers query a remote API, which takes time and may fail.
_REMOTE_RESOLVERS = (KubernetesClusterResolver, TPUClusterResolver)
_warned: list[str] = []


def warn_if_unsynchronized(kind: str) -> None:
    """Logs once per job, in worker 0, that each of several workers trains its own model.

    No warning in an evaluator or in a cluster with parameter servers, where single-process strategies are
    normal. Errors in the environment are ignored: the strategies that need the cluster report them.

    Args:
        kind: The class name of the new strategy.
    """
    if _warned or joined_cluster() is not None:
        return
    try:
        found = resolve_cluster()
        if found.resolver is None or isinstance(found.resolver, _REMOTE_RESOLVERS):
            return
        workers = _workers_led_by(found.resolver)
    except StratagemError:
        return
    if workers > 1:
        _warned.append(kind)
        _logger.warning(
            "%s trains only on this process's devices, but this is one of %d workers (%s): each worker "
            "trains its own model, and gradients are not averaged between workers. To train one model on "
            "all workers, use MultiWorkerMirroredStrategy(). Ignore this warning if each worker should "
            "train its own model, as in a hyperparameter search.",
            kind,
            workers,
            found.reason,
        )


def _workers_led_by(resolver: ClusterResolver) -> int:
    """Returns the number of workers if this process is the first of them; else 0."""
    try:
        spec = resolver.cluster_spec()
    except UnknownAddressesError:
        return resolver.num_processes if resolver.process_id == 0 else 0
    if "ps" in spec.jobs or resolver.task_type not in ("chief", "worker"):
        return 0
    return resolver.num_processes if resolver.process_id == 0 else 0
