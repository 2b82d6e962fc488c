"""``TFConfigClusterResolver``: reads the cluster from the ``TF_CONFIG`` variable."""

from __future__ import annotations

import json
import os
from typing import Any

from stratagem._src.cluster.address import Address
from stratagem._src.cluster.cluster_spec import ClusterSpec
from stratagem._src.cluster.errors import ClusterSpecError, EnvironmentVariableError, shortened
from stratagem._src.cluster.loopback import loopback_address
from stratagem._src.cluster.resolvers.cluster_resolver import ClusterResolver
from stratagem._src.cluster.visible_devices import find_share

__all__ = ["TFConfigClusterResolver"]

_VARIABLE = "TF_CONFIG"
_EXAMPLE = (
    '{"cluster": {"worker": ["host0:2222", "host1:2222"]}, "task": {"type": "worker", "index": 0}}'
)


class TFConfigClusterResolver(ClusterResolver):
    """A resolver that reads ``TF_CONFIG``, a JSON object with ``cluster`` and ``task``.

    Arguments take precedence over the variable. Without the variable the cluster is empty.

    >>> import json, os
    >>> from unittest import mock
    >>> from stratagem.distribute.cluster_resolver import TFConfigClusterResolver
    >>> config = {
    ...     "cluster": {"chief": ["c:2222"], "worker": ["w0:2222"]},
    ...     "task": {"type": "worker", "index": 0},
    ... }
    >>> with mock.patch.dict(os.environ, TF_CONFIG=json.dumps(config)):
    ...     resolver = TFConfigClusterResolver()
    ...     resolver.task_type, resolver.task_id, resolver.coordinator_address, resolver.process_id
    ('worker', 0, 'c:2222', 1)

    Args:
        task_type: The job of this task.
        task_id: The index of this task in its job.
        rpc_layer: The protocol prefix of addresses.
        environment: The value of ``environment``.

    Raises:
        EnvironmentVariableError: If ``TF_CONFIG`` is malformed, on access.
    """

    @property
    def _fix_of_task(self) -> str:  # type: ignore[override]
        return f"Correct TF_CONFIG, which holds {shortened(os.environ.get(_VARIABLE, ''))!r}."

    def __init__(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
        environment: str | None = None,
    ) -> None:
        self._task_type = task_type
        self._task_id = task_id
        self._rpc_layer = rpc_layer
        self._environment = environment

    def cluster_spec(self) -> ClusterSpec:
        """Returns the cluster in ``TF_CONFIG``; empty if it has none."""
        config = _load()
        cluster = config.get("cluster", {})
        if "cluster" not in config and _needs_others(self.task_type, self.task_id):
            # With a misspelt key the process would otherwise train a separate model alone.
            raise _malformed(f"a 'cluster' that has its 'task', as in {_EXAMPLE}")
        try:
            return ClusterSpec(cluster)
        except (ClusterSpecError, TypeError) as error:
            raise _malformed(f"a well-formed 'cluster' ({error})") from None

    def master(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
    ) -> str:
        """Returns the URL of a task; ``""`` if there is only one task; ``session_master`` if given."""
        session_master = _load().get("session_master")
        if session_master is not None:
            return str(session_master)
        spec = self.cluster_spec()
        if sum(spec.num_tasks(job) for job in spec.jobs) <= 1:
            return ""
        return super().master(task_type, task_id, rpc_layer)

    @property
    def local_device_ids(self) -> tuple[int, ...] | None:
        """This task's share of the GPUs, if several tasks of the cluster run on this host; else ``None``.

        If ``CUDA_VISIBLE_DEVICES`` or ``HIP_VISIBLE_DEVICES`` restricts the GPUs already, the task uses all
        that are visible.

        Raises:
            LaunchError: If the number of GPUs is not divisible by that of the tasks, or on a TPU host.
        """
        spec = self.cluster_spec()
        tasks = [(job, index) for job in spec.jobs for index in spec.task_indices(job)]
        own = (self.task_type, self.task_id)
        if own not in tasks:
            return None
        hosts = {task: _host_of(spec.task_address(*task)) for task in tasks}
        here = [task for task in tasks if hosts[task] == hosts[own]]
        return find_share(os.environ, [job for job, _ in here], here.index(own))

    @property
    def environment(self) -> str:
        """The given environment."""
        return self._environment or ""

    def _find_task_type(self) -> str | None:
        task_type = _task().get("type")
        if task_type is None or isinstance(task_type, str):
            return task_type
        raise _malformed("a string as the 'type' of 'task'")

    def _find_task_id(self) -> int | None:
        index = _task().get("index")
        if isinstance(index, str) and index.isascii() and index.isdigit() and len(index) <= 9:
            return int(index)
        if index is None or (isinstance(index, int) and not isinstance(index, bool) and index >= 0):
            return index
        raise _malformed("a whole number >= 0 as the 'index' of 'task'")

    def _find_rpc_layer(self) -> str | None:
        rpc_layer = _load().get("rpc_layer")
        if rpc_layer is None or isinstance(rpc_layer, str):
            return rpc_layer
        raise _malformed("a string as 'rpc_layer'")


def _host_of(address: str) -> str:
    host = Address.parse(address).host
    return "localhost" if loopback_address(host) else host


def _needs_others(task_type: str | None, task_id: int | None) -> bool:
    """Returns whether a task needs a cluster; an evaluator, for example, does not."""
    return task_type in ("worker", "ps") or bool(task_id)


def _load() -> dict[str, Any]:
    text = os.environ.get(_VARIABLE, "")
    if not text.strip():
        return {}
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _malformed(f"JSON ({error}) such as {_EXAMPLE}") from None
    if not isinstance(config, dict):
        raise _malformed(f"a JSON object such as {_EXAMPLE}")
    return config


def _task() -> dict[str, Any]:
    task = _load().get("task", {})
    if not isinstance(task, dict):
        raise _malformed(f"a JSON object as 'task', as in {_EXAMPLE}")
    return task


def _malformed(should_hold: str) -> EnvironmentVariableError:
    return EnvironmentVariableError(_VARIABLE, os.environ.get(_VARIABLE, ""), should_hold)
