"""``tf.tpu.experimental``: TPU initialization, topology and device assignment."""

from typing import TYPE_CHECKING

from stratagem._src.cluster.resolvers.tpu_system_metadata import TPUSystemMetadata
from stratagem._src.control_plane.tpu_system import initialize_tpu_system, shutdown_tpu_system
from stratagem._src.core.lazy_names import lazy_names
from stratagem._src.mesh.device_assignment import DeviceAssignment
from stratagem._src.mesh.tpu_topology import Topology

__all__ = [
    "DeviceAssignment",
    "TPUSystemMetadata",
    "Topology",
    "initialize_tpu_system",
    "shutdown_tpu_system",
]

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__)
