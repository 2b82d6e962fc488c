"""The coordinator of a parameter-server cluster, and the values it returns."""

from stratagem._src.parameter_server.coordinator.cluster_coordinator import ClusterCoordinator
from stratagem._src.parameter_server.coordinator.per_worker import PerWorkerValues
from stratagem._src.parameter_server.coordinator.remote_value import RemoteValue
from stratagem._src.parameter_server.coordinator.server_recovery import ServerRecovery
from stratagem._src.parameter_server.protocol.worker_index import (
    experimental_get_current_worker_index,
)

PerWorkerValue = PerWorkerValues

__all__ = [
    "ClusterCoordinator",
    "PerWorkerValue",
    "PerWorkerValues",
    "RemoteValue",
    "ServerRecovery",
    "experimental_get_current_worker_index",
]
