"""The CPU device of this process, in addition to its accelerators.

Dataset functions, parameter servers and the initial values of large variables compute on the CPU. With
``JAX_PLATFORMS=cuda`` JAX has no CPU device, so ``cpu`` is added behind it before the backend starts.
"""

from __future__ import annotations

import contextlib
from typing import Any

import jax

from stratagem._src.jax_compat.running_backends import running_backends

__all__ = ["add_host_platform", "host_device", "on_host"]


def add_host_platform() -> None:
    """Adds the CPU behind the platforms that the user named for JAX; the first stays the default."""
    config: Any = jax.config
    platforms = config.jax_platforms
    if platforms and "cpu" not in platforms.split(",") and not running_backends():
        jax.config.update("jax_platforms", f"{platforms},cpu")


def host_device() -> jax.Device | None:
    """Returns the first CPU device; ``None`` if JAX was started without the CPU before."""
    add_host_platform()
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        return None


def on_host() -> contextlib.AbstractContextManager[Any]:
    """Computes the block on the CPU; on the default device if JAX was started without the CPU."""
    device = host_device()
    return contextlib.nullcontext() if device is None else jax.default_device(device)
