"""Tests of distributed programs, in a local cluster of real processes."""

from stratagem._src.testing.errors import ClusterTestError, TaskFailure
from stratagem._src.testing.run_cluster import run_cluster

__all__ = ["ClusterTestError", "TaskFailure", "run_cluster"]
