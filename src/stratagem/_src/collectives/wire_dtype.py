"""The wire dtype: the dtype in which arrays are sent between replicas, if options choose a narrower one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.core.communication_options import CommunicationOptions
from stratagem._src.core.types import DTypeLike, Tensor
from stratagem._src.mesh.replica_group import ReplicaGroup
from stratagem._src.values.per_replica import PerReplica, SpmdPerReplica

__all__ = ["is_half", "on_wire", "split_rounding_errors", "wire_dtype"]


def wire_dtype(dtype: DTypeLike, options: CommunicationOptions | None) -> Any:
    """Returns the dtype in which an array is sent: its own, unless the options choose a narrower one.

    >>> from stratagem._src.collectives.wire_dtype import wire_dtype
    >>> options = CommunicationOptions(dtype="bfloat16")
    >>> [np.dtype(wire_dtype(np.dtype(d), options)).name for d in ("float32", "float16", "int64")]
    ['bfloat16', 'float16', 'int64']
    """
    if options is None or options.dtype is None or not jnp.issubdtype(dtype, jnp.floating):
        return dtype
    wanted = jnp.dtype(options.dtype)
    return wanted if np.dtype(dtype).itemsize > wanted.itemsize else dtype


def on_wire(array: Tensor, options: CommunicationOptions | None) -> Any:
    """Returns an array in its wire dtype."""
    wanted = wire_dtype(array.dtype, options)
    return array if wanted == array.dtype else array.astype(wanted)


def split_rounding_errors(
    values: Sequence[PerReplica], group: ReplicaGroup, options: CommunicationOptions
) -> tuple[list[PerReplica], list[PerReplica]]:
    """Returns values as they are on the wire, in their own dtype, and what rounding takes from them."""
    rounded = [_on_each(value, group, lambda array: _round(array, options)) for value in values]

    def error(array: Tensor) -> Any:
        sent = _round(array, options)
        # Not of an overflow: that would stay infinite forever.
        return jnp.where(jnp.isfinite(sent), array - sent, 0)

    return rounded, [_on_each(value, group, error) for value in values]


def _round(array: Tensor, options: CommunicationOptions) -> Any:
    wire = wire_dtype(array.dtype, options)
    if wire == array.dtype:
        return array
    # XLA removes a conversion to a narrower dtype and back, but not this.
    info = jnp.finfo(wire)
    return jax.lax.reduce_precision(array, info.nexp, info.nmant)


def _on_each(value: PerReplica, group: ReplicaGroup, function: Callable[[Any], Any]) -> PerReplica:
    """Returns the results of an elementwise function in each replica."""
    if isinstance(value, SpmdPerReplica):
        return SpmdPerReplica(group, function(value.local))
    array = value.global_array(group)
    return PerReplica.from_global(group, function(array), scalar=value.scalar)


def is_half(dtype: DTypeLike) -> bool:
    """Returns whether a dtype has 16 bits and is summed in float32."""
    return dtype in (jnp.bfloat16, jnp.float16)
