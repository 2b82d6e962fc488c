"""Older names of ``distribute.coordinator``, as in ``tf.distribute.experimental.coordinator``."""

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
