"""Resolves device names to JAX devices, and creates virtual CPU devices on demand."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from stratagem._src.core.errors import BackendStartedError, DeviceError
from stratagem._src.jax_compat.compile_only_devices import is_compile_only
from stratagem._src.mesh.backend_start import prepare_backend

__all__ = [
    "DeviceName",
    "canonical_name",
    "name_processes",
    "parse_device",
    "resolve_devices",
    "set_num_cpu_devices",
]

_NAME = re.compile(
    r"^/?(?:job:(?P<job>\w+)/)?(?:replica:(?P<replica>\d+)/)?(?:task:(?P<task>\d+)/)?"
    r"(?:device:)?(?P<type>[a-z]+):(?P<index>\d+)$",
    re.IGNORECASE,
)
_HOST_COUNT_FLAG = re.compile(r"--xla_force_host_platform_device_count=(\d+)")
_PLATFORMS = {"CPU": "cpu", "GPU": "gpu", "CUDA": "gpu", "ROCM": "gpu", "TPU": "tpu"}


@dataclass(frozen=True)
class DeviceName:
    """Platform and index that a device string stands for."""

    platform: str
    index: int


def parse_device(name: str) -> DeviceName:
    """Returns the platform and index in a device string.

    Accepts ``"CPU:0"``, ``"/gpu:1"``, ``"/device:GPU:1"`` and the full
    ``"/job:localhost/replica:0/task:0/device:GPU:0"``, in any case.

    Raises:
        DeviceError: If the string is not a device name.

    >>> parse_device("/job:localhost/replica:0/task:0/device:GPU:1")
    DeviceName(platform='gpu', index=1)
    """
    match = _NAME.match(name)
    if match is None or match["type"].upper() not in _PLATFORMS:
        raise DeviceError(
            "A device is written like 'CPU:0', '/gpu:1' or "
            f"'/job:localhost/replica:0/task:0/device:GPU:0', got {name!r}."
        )
    return DeviceName(_PLATFORMS[match["type"].upper()], int(match["index"]))


def canonical_name(device: jax.Device) -> str:
    """Returns the full name of a device, as ``tf.distribute`` spells it."""
    platform = "GPU" if device.platform in ("gpu", "cuda", "rocm") else device.platform.upper()
    index = jax.devices(device.platform).index(device)
    if jax.process_count() > 1:
        peers = [d for d in jax.devices(device.platform) if d.process_index == device.process_index]
        index = peers.index(device)
    job, task = _process_name(device.process_index)
    return f"/job:{job}/replica:0/task:{task}/device:{platform}:{index}"


_process_names: list[tuple[str, int]] = []


def name_processes(names: Sequence[tuple[str, int]]) -> None:
    """Sets the job and the task index of each process, for the names of its devices."""
    _process_names[:] = names


def _process_name(process: int) -> tuple[str, int]:
    if process < len(_process_names):
        return _process_names[process]
    return ("localhost" if jax.process_count() == 1 else "worker"), process


def resolve_devices(
    devices: Iterable[str | jax.Device] | str | jax.Device | None = None,
) -> tuple[jax.Device, ...]:
    """Returns the JAX devices for names, devices, or nothing.

    Nothing (``None`` or empty) means every local accelerator, or every local CPU device if there is no
    accelerator. Missing virtual CPU devices are created if the backend has not started.

    Raises:
        DeviceError: If a name is malformed, unknown, or given twice.
        BackendStartedError: If more CPU devices are needed than the running backend has.
    """
    prepare_backend()
    if isinstance(devices, (str, jax.Device)):
        devices = (devices,)
    if not isinstance(devices, Iterable | None):
        raise DeviceError(
            f"devices must be names such as ['GPU:0', 'GPU:1'] or ['CPU:0', 'CPU:1'], got {devices!r}."
        )
    wanted = tuple(devices or ())
    if not wanted:
        return tuple(jax.local_devices())
    parsed = [parse_device(d) if isinstance(d, str) else d for d in wanted]
    highest_cpu = max(
        (d.index for d in parsed if isinstance(d, DeviceName) and d.platform == "cpu"), default=-1
    )
    described = [d for d in parsed if not isinstance(d, DeviceName) and is_compile_only(d)]
    if described and len(described) < len(parsed):
        raise DeviceError(
            f"A strategy has devices of this machine or of a topology description, got both: {wanted}."
        )
    num_cpus = max(highest_cpu + 1, len(described))
    if num_cpus:
        _provide_cpu_devices(num_cpus)
    resolved = tuple(_lookup(d) if isinstance(d, DeviceName) else d for d in parsed)
    if len(set(resolved)) != len(resolved):
        raise DeviceError(
            "Each device can be given once, got "
            f"{[str(d) for d in wanted]}. Remove the repeated ones."
        )
    return resolved


def set_num_cpu_devices(count: int) -> None:
    """Splits the CPU into ``count`` virtual devices, before the JAX backend starts.

    JAX equivalent: ``jax.config.update("jax_num_cpu_devices", count)``.

    Raises:
        BackendStartedError: If the backend runs already with another number.
    """
    if count < 1:
        raise ValueError(f"The number of CPU devices must be at least 1, got {count}.")
    try:
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError as error:
        if len(jax.local_devices(backend="cpu")) == count:
            return
        raise _too_late(count) from error


def _provide_cpu_devices(count: int) -> None:
    config: Any = jax.config
    configured = config.jax_num_cpu_devices
    if configured < 1:
        flag = _HOST_COUNT_FLAG.findall(os.environ.get("XLA_FLAGS", ""))
        configured = int(flag[-1]) if flag else 1
    if configured >= count:
        return
    try:
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError as error:
        if len(jax.local_devices(backend="cpu")) < count:
            raise _too_late(count) from error


def _too_late(count: int) -> BackendStartedError:
    existing = len(jax.local_devices(backend="cpu"))
    return BackendStartedError(
        f"{count} CPU devices are needed, but the JAX backend has already started with {existing}. "
        f"Call stratagem.config.set_num_cpu_devices({count}) at the start of the program, before "
        "any array is made or device is listed."
    )


def _lookup(name: DeviceName) -> jax.Device:
    available: Sequence[jax.Device]
    try:
        available = jax.local_devices(backend=name.platform)
    except RuntimeError:
        available = ()
    if name.index < len(available):
        return available[name.index]
    existing = ", ".join(canonical_name(d) for d in jax.local_devices())
    raise DeviceError(
        f"There is no device {name.platform.upper()}:{name.index} on this machine. "
        f"Available: {existing}."
    )
