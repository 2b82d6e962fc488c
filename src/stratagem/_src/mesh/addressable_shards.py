"""``addressable_shards``: all shards of an array on this process's devices, even after an interrupt."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from stratagem._src.jax_compat.compile_time_eval import evaluate_now

__all__ = ["addressable_shards"]


def addressable_shards(array: jax.Array) -> Sequence[jax.Shard]:
    """Returns the shards of a concrete array on the devices of this process.

    JAX creates the shards on first use, one after the other, and caches the list. An interrupt (Ctrl-C)
    between two of them leaves an incomplete list in the cache. The array itself is intact: programs can
    read it, and a copy of it has all shards.
    """
    shards = array.addressable_shards
    if len(shards) == len(array.sharding.addressable_devices):
        return shards
    return evaluate_now(lambda: jnp.copy(array)).addressable_shards
