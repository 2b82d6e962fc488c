"""``ClusterDef``, ``JobDef`` and ``ServerDef``: a cluster as plain data.

Differs from tf.distribute: these are dataclasses with the same field names, not protocol buffers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["ClusterDef", "JobDef", "ServerDef"]


@dataclass(frozen=True)
class JobDef:
    """One job: its name and the address of each task by index.

    >>> from stratagem.train import JobDef
    >>> JobDef(name="ps", tasks={0: "ps0:2222"}).tasks[0]
    'ps0:2222'
    """

    name: str
    tasks: Mapping[int, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class ClusterDef:
    """Every job of a cluster.

    >>> from stratagem.train import ClusterSpec
    >>> ClusterSpec({"worker": ["w0:2222"]}).as_cluster_def()
    ClusterDef(job=(JobDef(name='worker', tasks={0: 'w0:2222'}),))
    """

    job: tuple[JobDef, ...] = ()


@dataclass(frozen=True)
class ServerDef:
    """One task's server: its cluster, and its task.

    >>> from stratagem.train import ClusterSpec, ServerDef
    >>> cluster = ClusterSpec({"ps": ["ps0:2222"]}).as_cluster_def()
    >>> ServerDef(cluster, job_name="ps", task_index=0).protocol
    'grpc'
    """

    cluster: ClusterDef
    job_name: str
    task_index: int = 0
    protocol: str = "grpc"
