"""Settings of the whole process: devices, other processes, and how functions run."""

import importlib
from typing import TYPE_CHECKING, Any

from stratagem.core.config import (
    LogicalDevice,
    functions_run_eagerly,
    list_logical_devices,
    run_functions_eagerly,
    set_num_cpu_devices,
)

if TYPE_CHECKING:
    from stratagem.cluster.connection import experimental_connect_to_cluster

__all__ = [
    "LogicalDevice",
    "experimental_connect_to_cluster",
    "functions_run_eagerly",
    "list_logical_devices",
    "run_functions_eagerly",
    "set_num_cpu_devices",
]


def __getattr__(name: str) -> Any:
    # Loaded when first asked for, to keep `import stratagem` quick.
    if name == "experimental_connect_to_cluster":
        return importlib.import_module(
            "stratagem.cluster.connection"
        ).experimental_connect_to_cluster
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
