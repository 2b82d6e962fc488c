"""XLA's all-reduces with the semantics of NumPy, for every dtype.

XLA's own minimum and maximum drop NaN on CPU and GPU, and compiling its sum of a complex zero constant
aborts the process. So floats are compared as integers of the same order, with NaN below or above all of
them, and complex numbers are summed as pairs of real numbers.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.core.reduce_op import ReduceOp
from stratagem._src.core.types import DTypeLike, Tensor
from stratagem._src.mesh.replica_group import REPLICA_AXIS

__all__ = ["from_pairs", "to_pairs", "xla_all_reduce"]


def xla_all_reduce(op: ReduceOp, array: Tensor) -> Any:
    """Returns an array all-reduced over the replicas, inside their program. Sums are differentiable."""
    dtype = array.dtype
    if op in (ReduceOp.SUM, ReduceOp.MEAN):
        reduce: Any = jax.lax.psum if op is ReduceOp.SUM else jax.lax.pmean
        if not jnp.issubdtype(dtype, jnp.complexfloating):
            return reduce(array, REPLICA_AXIS)
        return from_pairs(reduce(to_pairs(array), REPLICA_AXIS), dtype)
    reduce = jax.lax.pmin if op is ReduceOp.MIN else jax.lax.pmax
    if not jnp.issubdtype(dtype, jnp.floating):
        return reduce(array, REPLICA_AXIS)
    # Not every backend reduces 16-bit integers.
    wide = array.astype(jnp.promote_types(dtype, jnp.float32))
    return _to_floats(reduce(_to_ordered(op, wide), REPLICA_AXIS), wide.dtype).astype(dtype)


def to_pairs(array: Tensor) -> Any:
    """Returns complex numbers as real and imaginary parts, in a new last dimension."""
    return jnp.stack([array.real, array.imag], axis=-1)


def from_pairs(pairs: Tensor, dtype: DTypeLike) -> Any:
    """Returns the complex numbers that ``to_pairs`` split."""
    return jax.lax.complex(pairs[..., 0], pairs[..., 1]).astype(dtype)


def _to_ordered(op: ReduceOp, array: Tensor) -> Any:
    """Returns integers in the order of the floats. NaN becomes the integer that wins the reduction."""
    bits = jax.lax.bitcast_convert_type(array, f"int{8 * array.dtype.itemsize}")
    limits = np.iinfo(bits.dtype)
    # The bits of negative floats are in reverse order.
    ordered = jnp.where(bits < 0, bits ^ limits.max, bits)
    nan = np.array(limits.min if op is ReduceOp.MIN else limits.max, bits.dtype)
    return jnp.where(jnp.isnan(array), nan, ordered)


def _to_floats(ordered: Tensor, dtype: DTypeLike) -> Any:
    """Inverts ``_to_ordered``. The two extreme integers have the bits of a NaN, too."""
    largest = np.iinfo(ordered.dtype).max
    bits = jnp.where(ordered < 0, ordered ^ largest, ordered)
    return jax.lax.bitcast_convert_type(bits, dtype)
