"""``DeviceUtilization``: how busy this process's NVIDIA GPUs are, for monitoring."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping

from stratagem._src.jax_compat.running_backends import running_backends

__all__ = ["DeviceUtilization"]

_LIBRARY = "libnvidia-ml.so.1"
_PLATFORMS = ("cuda", "gpu")


class _Rates(ctypes.Structure):
    """``nvmlUtilization_t``: percentages of the last sampling period of the driver."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class DeviceUtilization:
    """Asks the driver (NVML), which comes with every NVIDIA GPU. CPUs and other devices report nothing.

    The driver counts the time in which any kernel runs, not how much of the GPU it uses, and counts other
    processes on the same GPU too.
    """

    def __init__(self) -> None:
        self._devices: list[ctypes.c_void_p] | None = None
        self._library: ctypes.CDLL | None = None

    def metrics(self) -> dict[str, float]:
        """Returns ``utilization``, from 0 to 1: the mean over the GPUs of this process."""
        if self._devices is None:
            gpus = [backend for backend in running_backends() if backend.platform in _PLATFORMS]
            if not gpus:  # perhaps JAX has not started yet
                return {}
            count = max(backend.local_device_count() for backend in gpus)
            self._devices = self._open(_visible_names(os.environ, count))
        rates = [rate for rate in map(self._rate, self._devices) if rate is not None]
        return {"utilization": sum(rates) / len(rates)} if rates else {}

    def _open(self, names: list[str]) -> list[ctypes.c_void_p]:
        try:
            self._library = library = ctypes.CDLL(_LIBRARY)
            if library.nvmlInit_v2():
                return []
        except (OSError, AttributeError):
            return []
        devices = []
        for name in names:
            device = ctypes.c_void_p()
            failed = (
                library.nvmlDeviceGetHandleByIndex_v2(int(name), ctypes.byref(device))
                if name.isdigit()
                else library.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(device))
            )
            if not failed:
                devices.append(device)
        return devices

    def _rate(self, device: ctypes.c_void_p) -> float | None:
        assert self._library is not None
        rates = _Rates()
        # The driver does not tell the rate of a part of a GPU (MIG).
        failed = self._library.nvmlDeviceGetUtilizationRates(device, ctypes.byref(rates))
        return None if failed else rates.gpu / 100


def _visible_names(environment: Mapping[str, str], count: int) -> list[str]:
    """Returns the numbers or UUIDs of this process's GPUs.

    >>> from stratagem._src.mesh.device_utilization import _visible_names
    >>> _visible_names({}, 2), _visible_names({"CUDA_VISIBLE_DEVICES": "3, GPU-8a"}, 2)
    (['0', '1'], ['3', 'GPU-8a'])
    """
    listed = environment.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return [str(number) for number in range(count)]
    return [name.strip() for name in listed.split(",") if name.strip()][:count]
