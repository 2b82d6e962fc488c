"""Options of devices in ``tf.config``: memory growth, visible devices, soft placement, determinism.

XLA reads these settings once, when the backend starts. Where a setting comes too late, those that change
only how memory is used warn, and those that change what a program does raise.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Any

import jax

from stratagem._src.core.errors import BackendStartedError, DeviceError
from stratagem._src.jax_compat.running_backends import running_backends
from stratagem._src.mesh.backend_start import may_have_accelerators
from stratagem._src.mesh.physical_devices import PhysicalDevice, list_physical_devices

__all__ = [
    "enable_op_determinism",
    "get_device_details",
    "get_memory_growth",
    "get_soft_device_placement",
    "get_visible_devices",
    "places_softly",
    "set_memory_growth",
    "set_soft_device_placement",
    "set_visible_devices",
]

_PREALLOCATE = "XLA_PYTHON_CLIENT_PREALLOCATE"
_DETERMINISTIC = "--xla_gpu_deterministic_ops=true"
_logger = logging.getLogger("stratagem")


class _Options:
    """The settings of this process."""

    soft_placement = True


_OPTIONS = _Options()


def set_memory_growth(device: PhysicalDevice, enable: bool) -> None:
    """Has GPUs allocate memory as it is needed (``True``), or most of it at the start (``False``, default).

    The setting is for all GPUs of the process. It warns if the JAX backend runs already, which keeps its
    memory; listing GPUs starts it.

    JAX equivalent: ``XLA_PYTHON_CLIENT_PREALLOCATE=false`` in the environment.

    >>> import stratagem as sg
    >>> for gpu in sg.config.list_physical_devices("GPU"):
    ...     sg.config.experimental.set_memory_growth(gpu, True)

    Raises:
        DeviceError: If it is not a GPU of this machine.
    """
    _check_is_gpu(device)
    if get_memory_growth(device) == bool(enable):
        return
    if running_backends():
        _logger.warning(
            "set_memory_growth(%s, %s) has no effect: the JAX backend has started and allocated its "
            "memory. Set %s=%s in the environment.",
            device.name,
            enable,
            _PREALLOCATE,
            "false" if enable else "true",
        )
        return
    os.environ[_PREALLOCATE] = "false" if enable else "true"


def get_memory_growth(device: PhysicalDevice) -> bool:
    """Returns whether a GPU allocates memory as it is needed.

    >>> import stratagem as sg
    >>> gpus = sg.config.list_physical_devices("GPU")
    >>> growing = [sg.config.experimental.get_memory_growth(gpu) for gpu in gpus]

    Raises:
        DeviceError: If it is not a GPU of this machine.
    """
    _check_is_gpu(device)
    return os.environ.get(_PREALLOCATE, "true").lower() in ("false", "0")


def set_visible_devices(
    devices: PhysicalDevice | Sequence[PhysicalDevice], device_type: str | None = None
) -> None:
    """Restricts the process to some of its devices. Hides all accelerators, or none.

    JAX equivalent: ``JAX_PLATFORMS=cpu`` in the environment.

    >>> import stratagem as sg
    >>> sg.config.set_visible_devices(sg.config.list_physical_devices("CPU"), "CPU")

    Args:
        devices: Those that stay visible.
        device_type: Only devices of this type are restricted; by default all.

    Raises:
        DeviceError: If a device does not exist, the CPU would be hidden, or some accelerators of a type
            and not the others.
        BackendStartedError: If accelerators would be hidden that JAX uses already.
    """
    wanted = [devices] if isinstance(devices, PhysicalDevice) else list(devices)
    kind = None if device_type is None else device_type.upper()
    for device in wanted:
        if device not in list_physical_devices() or kind not in (None, device.device_type):
            raise DeviceError(
                f"set_visible_devices takes devices that list_physical_devices({device_type!r}) returns, "
                f"got {device!r}."
            )
    if kind in (None, "CPU") and not any(d.device_type == "CPU" for d in wanted):
        raise DeviceError(
            "The CPU cannot be hidden, it runs the program: add list_physical_devices('CPU') to the "
            "visible devices, or pass device_type='GPU'."
        )
    if kind == "CPU" or not may_have_accelerators():
        return
    if not any(d.device_type != "CPU" for d in wanted) and not running_backends():
        jax.config.update("jax_platforms", "cpu")
        return
    if hidden := [d for d in list_physical_devices(kind) if d not in wanted]:
        raise BackendStartedError(
            f"The JAX backend has started with {', '.join(d.name for d in hidden)}, which cannot be hidden "
            "any more. Set CUDA_VISIBLE_DEVICES or JAX_PLATFORMS=cpu in the environment, or name the "
            "devices to use: MirroredStrategy(['GPU:0'])."
        )


def get_visible_devices(device_type: str | None = None) -> list[PhysicalDevice]:
    """Returns the devices that the process may use: those of ``list_physical_devices``.

    >>> import stratagem as sg
    >>> sg.config.get_visible_devices("CPU")
    [PhysicalDevice(name='/physical_device:CPU:0', device_type='CPU')]
    """
    return list_physical_devices(device_type)


def set_soft_device_placement(enabled: bool) -> None:
    """Ignores ``tf.device`` for devices that do not exist (``True``, the default), or raises (``False``).

    >>> import stratagem as sg
    >>> sg.config.set_soft_device_placement(True)
    """
    _OPTIONS.soft_placement = bool(enabled)


def get_soft_device_placement() -> bool:
    """Returns whether ``tf.device`` ignores devices that do not exist.

    >>> import stratagem as sg
    >>> sg.config.get_soft_device_placement()
    True
    """
    return places_softly()


def places_softly() -> bool:
    """Returns whether ``tf.device`` ignores devices that do not exist."""
    return _OPTIONS.soft_placement


def get_device_details(device: PhysicalDevice) -> dict[str, Any]:
    """Returns the name and the compute capability of a GPU; nothing for a CPU.

    >>> import stratagem as sg
    >>> [cpu] = sg.config.list_physical_devices("CPU")
    >>> sg.config.experimental.get_device_details(cpu)
    {}

    Raises:
        DeviceError: If it is not a device of this machine.
    """
    if device not in list_physical_devices():
        raise _no_such_device(device)
    if device.device_type == "CPU":
        return {}
    index = int(device.name.rpartition(":")[2])
    found = jax.local_devices(backend=device.device_type.lower())[index]
    details: dict[str, Any] = {"device_name": found.device_kind}
    if capability := getattr(found, "compute_capability", None):
        details["compute_capability"] = tuple(int(part) for part in capability.split("."))
    return details


def enable_op_determinism() -> None:
    """Has programs on GPUs compute the same bits in each run, before the JAX backend starts.

    Programs on CPUs and TPUs do in any case. Random numbers need ``tf.random.set_seed``.

    JAX equivalent: ``XLA_FLAGS=--xla_gpu_deterministic_ops=true`` in the environment.

    >>> import stratagem as sg
    >>> sg.config.experimental.enable_op_determinism()

    Raises:
        BackendStartedError: If the JAX backend runs with GPUs and without the flag.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    if not may_have_accelerators() or _DETERMINISTIC in flags:
        return
    if not running_backends():
        os.environ["XLA_FLAGS"] = f"{flags} {_DETERMINISTIC}".strip()
    elif list_physical_devices("GPU"):
        raise BackendStartedError(
            "enable_op_determinism must be called before the JAX backend starts, at the start of the "
            f"program. Or set XLA_FLAGS={_DETERMINISTIC} in the environment."
        )


def _check_is_gpu(device: PhysicalDevice) -> None:
    if device not in list_physical_devices():
        raise _no_such_device(device)
    if device.device_type != "GPU":
        raise DeviceError(f"Only GPUs have the option of memory growth, got {device!r}.")


def _no_such_device(device: object) -> DeviceError:
    return DeviceError(
        f"There is no physical device {device!r}. Pass one that list_physical_devices() returns."
    )
