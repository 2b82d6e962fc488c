"""Which trace a traced array belongs to."""

from __future__ import annotations

import jax.numpy as jnp

from stratagem._src.core.types import Trace, Tracer

__all__ = ["belongs_to", "stages_into"]


def belongs_to(tracer: Tracer, trace: Trace) -> bool:
    """Returns whether a traced array belongs to ``trace`` itself, not to one around it.

    ``False`` if JAX has changed.

    Args:
        tracer: The traced array.
        trace: From ``jax_compat.tracing.active_trace``.
    """
    return getattr(tracer, "_trace", None) is trace


def stages_into(trace: Trace) -> bool:
    """Returns whether an operation would be staged into ``trace`` itself.

    It would inside a gradient, but not in the body of a loop, a branch or a ``jax.jit``, which JAX traces
    once, or not at all, for any number of runs. ``True`` if JAX has changed.

    Args:
        trace: From ``jax_compat.tracing.active_trace``.
    """
    return getattr(jnp.zeros(()), "_trace", trace) is trace
