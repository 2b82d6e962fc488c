"""Says once that a strategy for all devices found one device, and how to get more."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import jax

__all__ = ["tell_of_single_device"]

_logger = logging.getLogger("stratagem")
_told: list[str] = []


def tell_of_single_device(kind: str, devices: Sequence[jax.Device], *, had_started: bool) -> None:
    """Logs once that a strategy without a list of devices has one replica.

    Args:
        kind: The class name of the strategy.
        devices: The devices that it found.
        had_started: Whether the JAX backend was running before the strategy was created.
    """
    if _told or len(devices) != 1:
        return
    _told.append(kind)
    [device] = devices
    if device.platform != "cpu":
        _logger.warning(
            "%s found one device, %s, so it trains with one replica. To use more, make them visible to "
            "JAX (CUDA_VISIBLE_DEVICES and similar), or start one process per host.",
            kind,
            device,
        )
        return
    if had_started:
        what = (
            "JAX had started before with one CPU device, and its number of devices is fixed from then on. "
            "Restart the program, in a notebook the kernel, and create the strategy first"
        )
    else:
        what = "JAX found no accelerator. To try several replicas on the CPU, name virtual devices"
    _logger.warning(
        "%s found one device, %s, so it trains with one replica. %s: "
        'MirroredStrategy(["CPU:0", "CPU:1"]), or sg.config.set_num_cpu_devices(2) before anything '
        "uses JAX.",
        kind,
        device,
        what,
    )
