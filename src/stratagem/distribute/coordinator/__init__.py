"""The coordinator of a parameter-server cluster and what it hands out."""

from stratagem.coordinator.cluster_coordinator import ClusterCoordinator
from stratagem.coordinator.per_worker import PerWorkerValues
from stratagem.coordinator.remote_value import RemoteValue
from stratagem.coordinator.worker_index import experimental_get_current_worker_index

PerWorkerValue = PerWorkerValues

__all__ = [
    "ClusterCoordinator",
    "PerWorkerValue",
    "PerWorkerValues",
    "RemoteValue",
    "experimental_get_current_worker_index",
]
