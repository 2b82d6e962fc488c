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
    from stratagem._src.mesh.device_options import (
        get_soft_device_placement,
        get_visible_devices,
        set_soft_device_placement,
        set_visible_devices,
    )
    from stratagem._src.mesh.physical_devices import (
        LogicalDeviceConfiguration,
        PhysicalDevice,
        get_logical_device_configuration,
        list_physical_devices,
        set_logical_device_configuration,
    )
    from stratagem.config import experimental, optimizer, threading

__all__ = [
    "LogicalDevice",
    "LogicalDeviceConfiguration",
    "PhysicalDevice",
    "experimental",
    "experimental_connect_to_cluster",
    "functions_run_eagerly",
    "get_logical_device_configuration",
    "get_soft_device_placement",
    "get_visible_devices",
    "list_logical_devices",
    "list_physical_devices",
    "optimizer",
    "run_functions_eagerly",
    "set_logical_device_configuration",
    "set_num_cpu_devices",
    "set_soft_device_placement",
    "set_visible_devices",
    "threading",
]

_CONNECT = "experimental_connect_to_cluster"
_PHYSICAL = (
    "LogicalDeviceConfiguration",
    "PhysicalDevice",
    "get_logical_device_configuration",
    "list_physical_devices",
    "set_logical_device_configuration",
)
_CONFIG_MODULES = ("experimental", "optimizer", "threading")
_OPTIONS = (
    "get_soft_device_placement",
    "get_visible_devices",
    "set_soft_device_placement",
    "set_visible_devices",
)

# Loaded on first use, to keep `import stratagem` fast.
_LAZY: dict[str, tuple[str, str | None]] = {
    _CONNECT: ("stratagem._src.control_plane.connect_to_cluster", _CONNECT)
}
_LAZY |= {name: (f"stratagem.config.{name}", None) for name in _CONFIG_MODULES}
_LAZY |= {name: ("stratagem._src.mesh.physical_devices", name) for name in _PHYSICAL}
_LAZY |= {name: ("stratagem._src.mesh.device_options", name) for name in _OPTIONS}

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__, _LAZY)
