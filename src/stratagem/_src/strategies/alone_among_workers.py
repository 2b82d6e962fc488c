"""A warning for strategies of one process in a job of several workers, which would train apart."""

from __future__ import annotations

import logging

from stratagem._src.cluster.errors import UnknownAddressesError
from stratagem._src.cluster.resolve import resolve_cluster
from stratagem._src.cluster.resolvers.cluster_resolver import ClusterResolver
from stratagem._src.cluster.resolvers.kubernetes_cluster_resolver import KubernetesClusterResolver
from stratagem._src.cluster.resolvers.tpu_cluster_resolver import TPUClusterResolver
from stratagem._src.control_plane.join import joined_cluster
from stratagem._src.core.errors import StratagemError

__all__ = ["warn_if_alone_among_workers"]

_logger = logging.getLogger("stratagem")
# These ask others who the workers are, which takes time and may fail.
_ASKING = (KubernetesClusterResolver, TPUClusterResolver)
_warned: list[str] = []


def warn_if_alone_among_workers(kind: str) -> None:
    """Logs once in a job that every worker has a model of its own, if this one leads several.

    An evaluator is alone by its nature, and so is what coordinates or serves a cluster with parameter
    servers. What the environment says wrong is for the strategies to say that need it.

    Args:
        kind: The class of the strategy that is made.
    """
    if _warned or joined_cluster() is not None:
        return
    try:
        found = resolve_cluster()
        if found.resolver is None or isinstance(found.resolver, _ASKING):
            return
        workers = _workers_led_by(found.resolver)
    except StratagemError:
        return
    if workers > 1:
        _warned.append(kind)
        _logger.warning(
            "%s trains on this process's devices only, but this is one of %d workers (%s): each of them "
            "trains a model of its own, and nothing is averaged between them. To train one model on all "
            "workers use MultiWorkerMirroredStrategy(). If each worker shall have its own model, as in a "
            "search for hyper-parameters, all is well.",
            kind,
            workers,
            found.reason,
        )


def _workers_led_by(resolver: ClusterResolver) -> int:
    """Returns how many workers train beside each other, if this process is the first; else 0."""
    try:
        spec = resolver.cluster_spec()
    except UnknownAddressesError:
        return resolver.num_processes if resolver.process_id == 0 else 0
    if "ps" in spec.jobs or resolver.task_type not in ("chief", "worker"):
        return 0
    return resolver.num_processes if resolver.process_id == 0 else 0
