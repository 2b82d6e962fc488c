"""Runs a function in Ray actors, which are the tasks of a cluster. Requires ``stratagem[ray]``."""

from stratagem._src.integrations.ray.run import run
from stratagem._src.integrations.ray.task_actor import get_dataset_shard

__all__ = ["get_dataset_shard", "run"]
