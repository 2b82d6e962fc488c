"""Settings of the whole process: devices, other processes, and how functions run."""

from typing import TYPE_CHECKING

from stratagem._src.core.lazy_names import lazy_names
from stratagem._src.mesh.process_settings import (
    LogicalDevice,
    functions_run_eagerly,
    list_logical_devices,
    run_functions_eagerly,
    set_num_cpu_devices,
)

if TYPE_CHECKING:
    from stratagem._src.membership.connect_to_cluster import experimental_connect_to_cluster

__all__ = [
    "LogicalDevice",
    "experimental_connect_to_cluster",
    "functions_run_eagerly",
    "list_logical_devices",
    "run_functions_eagerly",
    "set_num_cpu_devices",
]

_CONNECT = "experimental_connect_to_cluster"

if not TYPE_CHECKING:
    __getattr__ = lazy_names(
        __name__, {_CONNECT: ("stratagem._src.membership.connect_to_cluster", _CONNECT)}
    )
