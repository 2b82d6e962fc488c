"""All-reduces of XLA that give what NumPy gives, whatever the dtype.

XLA's own drop NaN from a minimum or maximum on CPU and GPU, and abort the process when they are compiled
for a complex constant that is zero. So floats are compared as integers in the same order, below or above
all of which NaN is, and complex numbers are summed as pairs of real ones.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.core.reduce_op import ReduceOp
from stratagem._src.mesh.replica_group import REPLICA_AXIS

__all__ = ["from_pairs", "to_pairs", "xla_all_reduce"]


def xla_all_reduce(op: ReduceOp, array: Any) -> Any:
    """Returns an array reduced over the replicas, in their program; sums can be differentiated."""
    dtype = array.dtype
    if op in (ReduceOp.SUM, ReduceOp.MEAN):
        reduce: Any = jax.lax.psum if op is ReduceOp.SUM else jax.lax.pmean
        if not jnp.issubdtype(dtype, jnp.complexfloating):
            return reduce(array, REPLICA_AXIS)
        return from_pairs(reduce(to_pairs(array), REPLICA_AXIS), dtype)
    reduce = jax.lax.pmin if op is ReduceOp.MIN else jax.lax.pmax
    if not jnp.issubdtype(dtype, jnp.floating):
        return reduce(array, REPLICA_AXIS)
    # Not every back end reduces integers of 16 bits.
    wide = array.astype(jnp.promote_types(dtype, jnp.float32))
    return _to_floats(reduce(_to_ordered(op, wide), REPLICA_AXIS), wide.dtype).astype(dtype)


def to_pairs(array: Any) -> Any:
    """Returns complex numbers as real and imaginary parts, in a new last dimension."""
    return jnp.stack([array.real, array.imag], axis=-1)


def from_pairs(pairs: Any, dtype: Any) -> Any:
    """Returns complex numbers of what ``to_pairs`` made of them."""
    return jax.lax.complex(pairs[..., 0], pairs[..., 1]).astype(dtype)


def _to_ordered(op: ReduceOp, array: Any) -> Any:
    """Returns integers in the order of the floats; NaN is what the reduction prefers to all others."""
    bits = jax.lax.bitcast_convert_type(array, f"int{8 * array.dtype.itemsize}")
    limits = np.iinfo(bits.dtype)
    # Negative floats are ordered by their bits the other way round.
    ordered = jnp.where(bits < 0, bits ^ limits.max, bits)
    nan = np.array(limits.min if op is ReduceOp.MIN else limits.max, bits.dtype)
    return jnp.where(jnp.isnan(array), nan, ordered)


def _to_floats(ordered: Any, dtype: Any) -> Any:
    """Returns the floats of which ``_to_ordered`` made integers; the limits are NaN, too, by their bits."""
    largest = np.iinfo(ordered.dtype).max
    bits = jnp.where(ordered < 0, ordered ^ largest, ordered)
    return jax.lax.bitcast_convert_type(bits, dtype)
