"""``tf.config``: process-wide settings of devices, clusters and functions."""

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
    from stratagem._src.control_plane.connect_to_cluster import experimental_connect_to_cluster
    from stratagem._src.mesh.physical_devices import (
        LogicalDeviceConfiguration,
        PhysicalDevice,
        get_logical_device_configuration,
        list_physical_devices,
        set_logical_device_configuration,
    )
    from stratagem.config import experimental

__all__ = [
    "LogicalDevice",
    "LogicalDeviceConfiguration",
    "PhysicalDevice",
    "experimental",
    "experimental_connect_to_cluster",
    "functions_run_eagerly",
    "get_logical_device_configuration",
    "list_logical_devices",
    "list_physical_devices",
    "run_functions_eagerly",
    "set_logical_device_configuration",
    "set_num_cpu_devices",
]

_CONNECT = "experimental_connect_to_cluster"
_PHYSICAL = (
    "LogicalDeviceConfiguration",
    "PhysicalDevice",
    "get_logical_device_configuration",
    "list_physical_devices",
    "set_logical_device_configuration",
)

# Loaded on first use, to keep `import stratagem` fast.
_LAZY: dict[str, tuple[str, str | None]] = {
    _CONNECT: ("stratagem._src.control_plane.connect_to_cluster", _CONNECT),
    "experimental": ("stratagem.config.experimental", None),
} | {name: ("stratagem._src.mesh.physical_devices", name) for name in _PHYSICAL}

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__, _LAZY)
