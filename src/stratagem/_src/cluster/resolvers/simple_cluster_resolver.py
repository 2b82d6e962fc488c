"""``SimpleClusterResolver``: a resolver for a given cluster spec."""

from __future__ import annotations

from collections.abc import Mapping

from stratagem._src.cluster.cluster_spec import ClusterSpec
from stratagem._src.cluster.resolvers.cluster_resolver import ClusterResolver, format_master_url

__all__ = ["SimpleClusterResolver"]


class SimpleClusterResolver(ClusterResolver):
    """A resolver that returns the given values.

    >>> from stratagem.distribute.cluster_resolver import SimpleClusterResolver
    >>> from stratagem.train import ClusterSpec
    >>> spec = ClusterSpec({"worker": ["w0:2222", "w1:2222"]})
    >>> resolver = SimpleClusterResolver(
    ...     spec, task_type="worker", task_id=1, num_accelerators={"GPU": 8}, rpc_layer="grpc"
    ... )
    >>> resolver.num_accelerators(), resolver.master("worker", 0)
    ({'GPU': 8}, 'grpc://w0:2222')

    Differs from tf.distribute: without ``num_accelerators`` the local accelerators are counted;
    TensorFlow returns ``{}``.

    Args:
        cluster_spec: The cluster.
        master: The result of ``master()`` without a task.
        task_type: The job of this task.
        task_id: The index of this task in its job.
        environment: The value of ``environment``.
        num_accelerators: The number of accelerators of each task, by kind.
        rpc_layer: The protocol prefix of addresses.

    Raises:
        TypeError: If ``cluster_spec`` is not a ``ClusterSpec`` or ``master`` not a string.
    """

    def __init__(
        self,
        cluster_spec: ClusterSpec,
        master: str = "",
        task_type: str | None = None,
        task_id: int | None = None,
        environment: str = "",
        num_accelerators: Mapping[str, int] | None = None,
        rpc_layer: str | None = None,
    ) -> None:
        if not isinstance(cluster_spec, ClusterSpec):
            raise TypeError(
                f"cluster_spec must be a ClusterSpec, got {type(cluster_spec).__name__}. "
                "Wrap it in ClusterSpec(...)."
            )
        if not isinstance(master, str):
            raise TypeError(f"master must be a string, got {type(master).__name__}.")
        self._cluster_spec = cluster_spec
        self._master = master
        self._task_type = task_type
        self._task_id = task_id
        self._environment = environment
        self._num_accelerators = None if num_accelerators is None else dict(num_accelerators)
        self._rpc_layer = rpc_layer

    def cluster_spec(self) -> ClusterSpec:
        """Returns the given cluster."""
        return self._cluster_spec

    def master(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
    ) -> str:
        """Returns the URL of the given task, or the ``master`` of the constructor."""
        address = self._master
        if task_type is not None and task_id is not None:
            address = self._cluster_spec.task_address(task_type, task_id)
        return format_master_url(address, rpc_layer or self.rpc_layer)

    def num_accelerators(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        config_proto: None = None,
    ) -> dict[str, int]:
        """Returns the given numbers, for any task, or counts the local accelerators."""
        if self._num_accelerators is not None:
            return dict(self._num_accelerators)
        return super().num_accelerators(task_type, task_id, config_proto)

    @property
    def environment(self) -> str:
        """The given environment."""
        return self._environment
