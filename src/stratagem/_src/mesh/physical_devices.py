"""Physical devices, and the number of virtual devices of the CPU, with the names of ``tf.config``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from stratagem._src.core.errors import DeviceError
from stratagem._src.mesh.backend_start import may_have_accelerators
from stratagem._src.mesh.devices import canonical_name, set_num_cpu_devices

__all__ = [
    "LogicalDeviceConfiguration",
    "PhysicalDevice",
    "get_logical_device_configuration",
    "list_physical_devices",
    "set_logical_device_configuration",
]


class PhysicalDevice(NamedTuple):
    """A device of this machine: its CPU, a GPU, or a core of a TPU.

    >>> import stratagem as sg
    >>> sg.config.list_physical_devices("CPU")
    [PhysicalDevice(name='/physical_device:CPU:0', device_type='CPU')]
    """

    name: str
    device_type: str


class LogicalDeviceConfiguration(NamedTuple):
    """One of the devices that a physical one is split into.

    Args:
        memory_limit: Must be ``None``: JAX cannot limit the memory of a logical device.
        experimental_priority: Must be ``None``.
        experimental_device_ordinal: Must be ``None``.

    >>> import stratagem as sg
    >>> cpu = sg.config.list_physical_devices("CPU")[0]
    >>> two = [sg.config.LogicalDeviceConfiguration()] * 2
    >>> sg.config.set_logical_device_configuration(cpu, two)  # doctest: +SKIP
    """

    memory_limit: int | None = None
    experimental_priority: int | None = None
    experimental_device_ordinal: int | None = None


_CPU = PhysicalDevice("/physical_device:CPU:0", "CPU")
_UNLIMITED = LogicalDeviceConfiguration()


def list_physical_devices(device_type: str | None = None) -> list[PhysicalDevice]:
    """Returns the devices of this machine, of one type (``"CPU"``, ``"GPU"``, ``"TPU"``) or all.

    The CPU is one physical device, even if it is split into several. Listing accelerators starts the JAX
    backend; if no accelerator plugin is installed, or JAX is configured not to use it, nothing is started.

    >>> list_physical_devices("CPU")
    [PhysicalDevice(name='/physical_device:CPU:0', device_type='CPU')]
    """
    wanted = None if device_type is None else device_type.upper()
    devices = [] if wanted == "CPU" or not may_have_accelerators() else _accelerators()
    return [device for device in [_CPU, *devices] if wanted in (None, device.device_type)]


def set_logical_device_configuration(
    device: PhysicalDevice, logical_devices: Sequence[LogicalDeviceConfiguration]
) -> None:
    """Splits the CPU into virtual devices, before the JAX backend starts.

    JAX equivalent: ``jax.config.update("jax_num_cpu_devices", len(logical_devices))``.

    Args:
        device: The CPU, from ``list_physical_devices("CPU")``. An accelerator cannot be split.
        logical_devices: One configuration for each logical device.

    Raises:
        DeviceError: If it is not a device of this machine, or cannot be split as requested.
        BackendStartedError: If the backend runs already with another number.

    >>> cpu = list_physical_devices("CPU")[0]
    >>> set_logical_device_configuration(cpu, [])
    Traceback (most recent call last):
        ...
    stratagem.errors.DeviceError: A device is split into one or more logical devices, got none.
    """
    _check_exists(device)
    for configuration in logical_devices:
        if tuple(configuration) != _UNLIMITED:
            raise DeviceError(
                "A logical device can have no memory limit, priority or ordinal, got "
                f"{configuration}. Use LogicalDeviceConfiguration(); XLA_PYTHON_CLIENT_MEM_FRACTION in the "
                "environment limits what a process takes of a GPU."
            )
    if not logical_devices:
        raise DeviceError("A device is split into one or more logical devices, got none.")
    if device == _CPU:
        set_num_cpu_devices(len(logical_devices))
    elif len(logical_devices) > 1:
        raise DeviceError(
            f"Only the CPU can be split into several devices, got {device} and "
            f"{len(logical_devices)} configurations. To try a strategy without GPUs split the CPU."
        )


def get_logical_device_configuration(
    device: PhysicalDevice,
) -> list[LogicalDeviceConfiguration] | None:
    """Returns the logical devices that were configured for a device; ``None`` if none were.

    >>> [cpu] = list_physical_devices("CPU")
    >>> configuration = get_logical_device_configuration(cpu)
    """
    _check_exists(device)
    config: Any = jax.config
    if device != _CPU or config.jax_num_cpu_devices < 1:
        return None
    return [_UNLIMITED] * config.jax_num_cpu_devices


def _check_exists(device: Any) -> None:
    if device != _CPU and device not in list_physical_devices():
        raise DeviceError(
            f"There is no physical device {device!r}. Pass one that list_physical_devices() returns."
        )


def _accelerators() -> list[PhysicalDevice]:
    names = [canonical_name(d) for d in jax.local_devices() if d.platform != "cpu"]
    kinds = [name.split(":")[-2:] for name in names]
    return [PhysicalDevice(f"/physical_device:{kind}:{index}", kind) for kind, index in kinds]
