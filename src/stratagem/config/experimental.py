"""``tf.config.experimental``: options of devices, and older names of ``stratagem.config``."""

from typing import TYPE_CHECKING

from stratagem._src.core.lazy_names import lazy_names
from stratagem._src.mesh.device_options import (
    enable_op_determinism,
    get_device_details,
    get_memory_growth,
    get_visible_devices,
    set_memory_growth,
    set_visible_devices,
)
from stratagem._src.mesh.physical_devices import (
    LogicalDeviceConfiguration as VirtualDeviceConfiguration,
)
from stratagem._src.mesh.physical_devices import (
    get_logical_device_configuration as get_virtual_device_configuration,
)
from stratagem._src.mesh.physical_devices import list_physical_devices
from stratagem._src.mesh.physical_devices import (
    set_logical_device_configuration as set_virtual_device_configuration,
)
from stratagem._src.mesh.process_settings import list_logical_devices

__all__ = [
    "VirtualDeviceConfiguration",
    "enable_op_determinism",
    "get_device_details",
    "get_memory_growth",
    "get_virtual_device_configuration",
    "get_visible_devices",
    "list_logical_devices",
    "list_physical_devices",
    "set_memory_growth",
    "set_virtual_device_configuration",
    "set_visible_devices",
]

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__)
