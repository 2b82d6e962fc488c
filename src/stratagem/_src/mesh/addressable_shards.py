"""``addressable_shards``: all pieces of an array on this process's devices, also after an interrupt."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from stratagem._src.jax_compat.compile_time_eval import evaluate_now

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
    return evaluate_now(lambda: jnp.copy(array)).addressable_shards
