"""``TaskActor``: a Ray actor that runs one task of a cluster."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

import cloudpickle

from stratagem._src.cluster.ray_module import load_ray
from stratagem._src.cluster.reserved_ports import ReservedPorts
from stratagem._src.transport.secret import SECRET_VARIABLE

__all__ = ["TaskActor", "get_dataset_shard"]

_shards: dict[str, Any] = {}


def get_dataset_shard(name: str = "train") -> Any:
    """Returns this worker's shard of a dataset that was passed to ``run``, as a Ray Data iterator.

    >>> from stratagem.integrations.ray import get_dataset_shard
    >>> get_dataset_shard("train")
    Traceback (most recent call last):
    KeyError: "dataset must be one of those given to run(..., datasets=...), [], got 'train'."

    Raises:
        KeyError: If ``run`` has no dataset of this name, or this process is not one of its workers.
    """
    if name not in _shards:
        raise KeyError(
            f"dataset must be one of those given to run(..., datasets=...), {sorted(_shards)}, "
            f"got {name!r}."
        )
    return _shards[name]


class TaskActor:
    """Reserves an address, and then calls a function as a task of the cluster."""

    def __init__(self) -> None:
        self._port: ReservedPorts | None = None

    def address(self) -> tuple[str, int]:
        """Returns the host of this actor, and a port that is reserved for it."""
        host: str = load_ray("integrations.ray").util.get_node_ip_address()
        self._port = ReservedPorts(1, host)
        [port] = self._port
        return host, port

    def call(
        self,
        call: bytes,
        path: Sequence[str],
        tf_config: str,
        secret: str,
        environment: dict[str, str],
        shards: dict[str, Any],
    ) -> Any:
        """Calls the function in the process of this task, and returns its result."""
        host = load_ray("integrations.ray").util.get_node_ip_address()
        described = json.loads(tf_config)
        task = described["task"]
        addresses = described["cluster"].get(task["type"])
        if addresses is not None and not addresses[task["index"]].startswith(f"{host}:"):
            raise RuntimeError(
                f"{task['type']} {task['index']} must restart at {addresses[task['index']]}, where the "
                f"other tasks expect it, but Ray restarted it on {host}."
            )
        # Set here, because Ray's dashboard shows the actor's runtime environment.
        os.environ.update(environment | {"TF_CONFIG": tf_config, SECRET_VARIABLE: secret})
        _shards.update(shards)
        sys.path += [folder for folder in path if folder not in sys.path]
        function, args, kwargs = cloudpickle.loads(call)
        return function(*args, **kwargs)
