"""Process-wide settings: devices, and whether functions run eagerly."""

from __future__ import annotations

from typing import NamedTuple

import jax

from stratagem._src.jax_compat.host_device import host_device
from stratagem._src.mesh.backend_start import prepare_backend
from stratagem._src.mesh.devices import canonical_name, set_num_cpu_devices

__all__ = [
    "PROCESS",
    "LogicalDevice",
    "functions_run_eagerly",
    "list_logical_devices",
    "run_functions_eagerly",
    "set_num_cpu_devices",
]


class _Process:
    """How functions run in this process."""

    runs_eagerly = False


PROCESS = _Process()


class LogicalDevice(NamedTuple):
    """A device that computations can be placed on."""

    name: str
    device_type: str


def list_logical_devices(device_type: str | None = None) -> list[LogicalDevice]:
    """Returns the local devices, of one type (``"CPU"``, ``"GPU"``, ``"TPU"``) or all.

    Starts the JAX backend.

    >>> list_logical_devices("CPU")[0]
    LogicalDevice(name='/job:localhost/replica:0/task:0/device:CPU:0', device_type='CPU')
    """
    prepare_backend()
    platforms = {device.platform for device in jax.local_devices()}
    if host_device() is not None:
        platforms.add("cpu")
    devices = [d for p in sorted(platforms) for d in jax.local_devices(backend=p)]
    listed = [LogicalDevice(canonical_name(d), canonical_name(d).split(":")[-2]) for d in devices]
    return [d for d in listed if device_type is None or d.device_type == device_type.upper()]


def run_functions_eagerly(run_eagerly: bool) -> None:
    """Makes every ``function`` run as plain Python (``True``), or compiled again (``False``).

    Use it to step through a training step with a debugger.
    """
    PROCESS.runs_eagerly = bool(run_eagerly)


def functions_run_eagerly() -> bool:
    """Returns whether functions run as plain Python.

    >>> functions_run_eagerly()
    False
    """
    return PROCESS.runs_eagerly
