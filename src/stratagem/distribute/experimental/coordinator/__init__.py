"""The names of ``distribute.coordinator``, where ``tf.distribute`` had them first."""

from stratagem.distribute.coordinator import (
    ClusterCoordinator,
    PerWorkerValue,
    PerWorkerValues,
    RemoteValue,
    experimental_get_current_worker_index,
)

__all__ = [
    "ClusterCoordinator",
    "PerWorkerValue",
    "PerWorkerValues",
    "RemoteValue",
    "experimental_get_current_worker_index",
]
