"""Gradients of the shards of a remote variable, as parts of the gradient of the whole."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from stratagem._src.core.indexed_slices import IndexedSlices
from stratagem._src.core.types import PyTree
from stratagem._src.variables.base_remote_variable import BaseRemoteVariable

__all__ = ["add_gradients", "shard_gradient"]


def shard_gradient(gradient: PyTree, shard: BaseRemoteVariable) -> Any:
    """Returns the gradient of a shard.

    How many of the rows are in the shard is unknown while tracing. So an ``IndexedSlices`` keeps the rows
    of the other shards, as zeros with an index that is out of range, which updates ignore.

    Args:
        gradient: The gradient of the variable that the shard belongs to; ``None`` if there is none.
        shard: The shard.
    """
    size, start = shard.program_shape[0], shard.first_row
    if gradient is None:
        return None
    if not isinstance(gradient, IndexedSlices):
        return gradient[start : start + size]
    indices = jnp.asarray(gradient.indices)
    inside = (indices >= start) & (indices < start + size)
    of_row = inside.reshape((-1,) + (1,) * (gradient.values.ndim - 1))
    values = jnp.where(of_row, gradient.values, jnp.zeros_like(gradient.values))
    return IndexedSlices(values, jnp.where(inside, indices - start, size), shard.program_shape)


def add_gradients(first: PyTree, second: PyTree) -> Any:
    """Returns the sum of two gradients of one variable, each of them ``None`` if there is none."""
    if first is None or second is None:
        return second if first is None else first
    if isinstance(first, IndexedSlices) and isinstance(second, IndexedSlices):
        return IndexedSlices(
            jnp.concatenate([first.values, second.values]),
            jnp.concatenate([first.indices, second.indices]),
            first.dense_shape,
        )
    dense = [g.to_dense() if isinstance(g, IndexedSlices) else g for g in (first, second)]
    return dense[0] + dense[1]
