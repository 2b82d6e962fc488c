"""``addressable_shards``: all pieces of an array on this process's devices, also after an interrupt."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from stratagem._src.core.tracing import under_trace

__all__ = ["addressable_shards"]


def addressable_shards(array: jax.Array) -> Sequence[jax.Shard]:
    """Returns the piece of a concrete array on each device of this process that it lies on.

    JAX makes an array's pieces when they are asked for, one after the other, and keeps them. If an
    interrupt (Ctrl-C) comes between two of them it keeps those that it has made, and takes them for all
    from then on. The array itself is whole: programs read it, and its copy has all pieces.
    """
    shards = array.addressable_shards
    if len(shards) == len(array.sharding.addressable_devices):
        return shards
    # Not where nothing is traced: an interrupt can keep it from being left.
    with jax.ensure_compile_time_eval() if under_trace() else contextlib.nullcontext():
        return jnp.copy(array).addressable_shards
