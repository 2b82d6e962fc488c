"""``addressable_shards``: all shards of an array on this process's devices, even after an interrupt."""

from __future__ import annotations

from collections.abc import Sequence

import jax

from stratagem._src.jax_compat.device_arrays import copy_without_program

__all__ = ["addressable_shards"]


def addressable_shards(array: jax.Array) -> Sequence[jax.Shard]:
    """Returns the shards of a concrete array on the devices of this process.

    JAX creates the shards on first use, one after the other, and caches the list. An interrupt (Ctrl-C)
    between two of them leaves an incomplete list in the cache. A signal handler sees such a list too, and
    if it asks for the shards it adds its own. The array itself is intact, and a copy has all shards.
    """
    shards = array.addressable_shards
    if len(shards) == len(array.sharding.addressable_devices):
        return shards
    return copy_without_program(array).addressable_shards
