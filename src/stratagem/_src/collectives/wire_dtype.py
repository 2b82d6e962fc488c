"""The wire dtype: the dtype in which arrays are sent between replicas, if options choose a narrower one."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from stratagem._src.core.communication_options import CommunicationOptions
from stratagem._src.core.types import DTypeLike, Tensor

__all__ = ["is_half", "on_wire", "wire_dtype"]


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


def is_half(dtype: DTypeLike) -> bool:
    """Returns whether a dtype has 16 bits and is summed in float32."""
    return dtype in (jnp.bfloat16, jnp.float16)
