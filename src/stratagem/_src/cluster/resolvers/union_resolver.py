"""``UnionResolver``: combines several resolvers into one."""

from __future__ import annotations

from stratagem._src.cluster.cluster_spec import ClusterSpec
from stratagem._src.cluster.resolvers.cluster_resolver import ClusterResolver, format_master_url

__all__ = ["UnionClusterResolver", "UnionResolver"]


class UnionResolver(ClusterResolver):
    """A resolver whose cluster has the tasks of several others.

    If every resolver lists all tasks of a job, the lists are concatenated in order. If one names only some
    tasks by index, tasks keep their indices, and duplicate indices are an error. The task type, task id and
    protocol are those of the first resolver that has one; the accelerators and the environment are the
    first resolver's.

    >>> from stratagem.distribute.cluster_resolver import SimpleClusterResolver, UnionResolver
    >>> from stratagem.train import ClusterSpec
    >>> first = SimpleClusterResolver(ClusterSpec({"worker": ["w0:1"]}), task_type="worker")
    >>> second = SimpleClusterResolver(ClusterSpec({"worker": ["w1:1"], "ps": ["p:1"]}), task_id=0)
    >>> union = UnionResolver(first, second)
    >>> union.cluster_spec().as_dict(), union.task_type, union.task_id
    ({'worker': ['w0:1', 'w1:1'], 'ps': ['p:1']}, 'worker', 0)

    Args:
        *resolvers: At least one resolver.
        task_type: The job of this task.
        task_id: The index of this task in its job.
        rpc_layer: The protocol to put in front of addresses.

    Raises:
        ValueError: If there is no resolver.
        TypeError: If one is not a ``ClusterResolver``.
    """

    def __init__(
        self,
        *resolvers: ClusterResolver,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
    ) -> None:
        if not resolvers:
            raise ValueError("UnionResolver needs at least one ClusterResolver, got none.")
        for resolver in resolvers:
            if not isinstance(resolver, ClusterResolver):
                raise TypeError(
                    "Every argument of UnionResolver must be a ClusterResolver, "
                    f"got {type(resolver).__name__}."
                )
        self._resolvers = resolvers
        self._task_type = task_type
        self._task_id = task_id
        self._rpc_layer = rpc_layer

    def cluster_spec(self) -> ClusterSpec:
        """Returns the tasks of all resolvers as one cluster.

        Raises:
            KeyError: If two resolvers give the same index of one job, in a job with sparse indices.
        """
        specs = [resolver.cluster_spec().as_dict() for resolver in self._resolvers]
        jobs = list(dict.fromkeys(job for spec in specs for job in spec))
        return ClusterSpec(
            {job: _union(job, [spec[job] for spec in specs if job in spec]) for job in jobs}
        )

    def master(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
    ) -> str:
        """Returns the URL of the given task, or the first resolver's ``master``."""
        if task_type is not None and task_id is not None:
            address = self.cluster_spec().task_address(task_type, task_id)
            return format_master_url(address, rpc_layer or self.rpc_layer)
        return self._resolvers[0].master(rpc_layer=rpc_layer)

    def num_accelerators(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        config_proto: None = None,
    ) -> dict[str, int]:
        """Returns the first resolver's accelerators."""
        return self._resolvers[0].num_accelerators(task_type, task_id, config_proto)

    @property
    def environment(self) -> str:
        """The first resolver's environment."""
        return self._resolvers[0].environment

    @property
    def local_device_ids(self) -> tuple[int, ...] | None:
        """The device ids of the first resolver that has some."""
        found = (resolver.local_device_ids for resolver in self._resolvers)
        return next((ids for ids in found if ids is not None), None)

    def _find_task_type(self) -> str | None:
        found = (resolver.task_type for resolver in self._resolvers)
        return next((task_type for task_type in found if task_type is not None), None)

    def _find_task_id(self) -> int | None:
        found = (resolver.task_id for resolver in self._resolvers)
        return next((task_id for task_id in found if task_id is not None), None)

    def _find_rpc_layer(self) -> str | None:
        found = (resolver.rpc_layer for resolver in self._resolvers)
        return next((rpc_layer for rpc_layer in found if rpc_layer is not None), None)


UnionClusterResolver = UnionResolver


def _union(job: str, parts: list[list[str] | dict[int, str]]) -> list[str] | dict[int, str]:
    lists = [part for part in parts if isinstance(part, list)]
    if len(lists) == len(parts):
        return [address for addresses in lists for address in addresses]
    union: dict[int, str] = {}
    for part in parts:
        tasks = dict(enumerate(part)) if isinstance(part, list) else part
        twice = sorted(union.keys() & tasks.keys())
        if twice:
            raise KeyError(
                f"Tasks {twice} of job {job!r} are in more than one cluster of the union. Give "
                "each task one index, or give all tasks as lists to have them numbered in order."
            )
        union |= tasks
    return union
