"""Recognizes devices of a topology description, which programs can be compiled for but not run on."""

from __future__ import annotations

import jax

__all__ = ["is_compile_only"]

_CLIENT = "CompileOnlyPyClient"


def is_compile_only(device: jax.Device) -> bool:
    """Returns whether a device comes from ``jax.experimental.topologies``."""
    return type(device.client).__name__ == _CLIENT
