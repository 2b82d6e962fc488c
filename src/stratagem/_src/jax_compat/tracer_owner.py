"""Which trace a traced array belongs to."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

__all__ = ["belongs_to", "stages_into"]


def belongs_to(tracer: Any, trace: Any) -> bool:
    """Returns whether a traced array is of ``trace`` itself, not of one around it.

    Where JAX does not say, the answer is no.

    Args:
        tracer: The traced array.
        trace: From ``core.tracing.active_trace``.
    """
    return getattr(tracer, "_trace", None) is trace


def stages_into(trace: Any) -> bool:
    """Returns whether an operation would become one of ``trace`` itself.

    It would inside of a gradient, but not in the body of a loop, a branch or a ``jax.jit``, which JAX calls
    once, or not at all, for any number of runs. Where JAX does not say, the answer is yes.

    Args:
        trace: From ``core.tracing.active_trace``.
    """
    return getattr(jnp.zeros(()), "_trace", trace) is trace
