"""Testing programs that run on a cluster, with real processes."""

from stratagem._src.testing.errors import ClusterTestError, TaskFailure
from stratagem._src.testing.run_cluster import run_cluster

__all__ = ["ClusterTestError", "TaskFailure", "run_cluster"]
