"""Counting the accelerators of this process."""

from __future__ import annotations

from collections import Counter

__all__ = ["count_local_accelerators"]


def count_local_accelerators() -> dict[str, int]:
    """Returns how many GPUs, TPUs and so on this process has, by kind; CPUs do not count.

    It starts the JAX backend, after which ``jax.distributed`` can no longer be initialized.
    """
    import jax  # here, because importing the cluster room must not import JAX

    kinds = (device.platform.upper() for device in jax.local_devices())
    return dict(Counter(kind for kind in kinds if kind != "CPU"))
