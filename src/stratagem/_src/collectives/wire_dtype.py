"""The dtype in which arrays travel between replicas, if the options say another one than their own."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from stratagem._src.core.communication_options import CommunicationOptions

__all__ = ["is_half", "on_wire", "wire_dtype"]


def wire_dtype(dtype: Any, options: CommunicationOptions | None) -> Any:
    """Returns the dtype in which an array travels: its own, unless the options ask for a narrower one.

    >>> from stratagem._src.collectives.wire_dtype import wire_dtype
    >>> options = CommunicationOptions(dtype="bfloat16")
    >>> [np.dtype(wire_dtype(np.dtype(d), options)).name for d in ("float32", "float16", "int64")]
    ['bfloat16', 'float16', 'int64']
    """
    if options is None or options.dtype is None or not jnp.issubdtype(dtype, jnp.floating):
        return dtype
    wanted = jnp.dtype(options.dtype)
    return wanted if np.dtype(dtype).itemsize > wanted.itemsize else dtype


def on_wire(array: Any, options: CommunicationOptions | None) -> Any:
    """Returns an array in the dtype in which it travels."""
    wanted = wire_dtype(array.dtype, options)
    return array if wanted == array.dtype else array.astype(wanted)


def is_half(dtype: Any) -> bool:
    """Returns whether numbers of a dtype are to be added in float32."""
    return dtype in (jnp.bfloat16, jnp.float16)
