"""Starting TPUs, and assigning their cores to replicas."""

from stratagem.cluster.resolvers.tpu_system_metadata import TPUSystemMetadata
from stratagem.tpu.device_assignment import DeviceAssignment
from stratagem.tpu.system import initialize_tpu_system, shutdown_tpu_system
from stratagem.tpu.topology import Topology

__all__ = [
    "DeviceAssignment",
    "TPUSystemMetadata",
    "Topology",
    "initialize_tpu_system",
    "shutdown_tpu_system",
]
