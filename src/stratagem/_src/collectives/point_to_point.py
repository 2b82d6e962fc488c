"""Point-to-point copies between replicas inside the SPMD program, and reductions built from them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from stratagem._src.collectives.wire_dtype import is_half
from stratagem._src.core.reduce_op import ReduceOp
from stratagem._src.core.types import Tensor
from stratagem._src.mesh.replica_group import REPLICA_AXIS

__all__ = ["accumulator", "broadcast_from", "collect_at", "finish"]


def collect_at(value: Tensor, senders: Sequence[int], receiver: int) -> list[Any]:
    """Returns each sender's value in ``receiver``, in order; other replicas get zeros."""
    return [
        value if sender == receiver else jax.lax.ppermute(value, REPLICA_AXIS, [(sender, receiver)])
        for sender in senders
    ]


def broadcast_from(value: Tensor, sender: int, receivers: Sequence[int]) -> Any:
    """Returns ``sender``'s value in each receiver; other replicas keep their own value."""
    index = jax.lax.axis_index(REPLICA_AXIS)
    result = value
    for receiver in receivers:
        if receiver != sender:
            copy = jax.lax.ppermute(value, REPLICA_AXIS, [(sender, receiver)])
            result = jnp.where(index == receiver, copy, result)
    return result


def accumulator(op: ReduceOp) -> Callable[[Sequence[Any]], Any]:
    """Returns the function that combines a list of arrays, before ``finish``."""
    combine = {ReduceOp.MIN: jnp.minimum, ReduceOp.MAX: jnp.maximum}.get(op)
    if combine is None:
        return _added
    return lambda values: functools.reduce(combine, values)


def _added(values: Sequence[Any]) -> Any:
    dtype = values[0].dtype
    if not is_half(dtype):
        return functools.reduce(jnp.add, values)
    wide = functools.reduce(jnp.add, [value.astype(jnp.float32) for value in values])
    return wide.astype(dtype)


def finish(op: ReduceOp, accumulated: Tensor, count: int) -> Any:
    """Returns the reduction of ``count`` values, given their accumulated value."""
    return accumulated / count if op is ReduceOp.MEAN else accumulated
