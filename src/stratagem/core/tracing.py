"""Questions about what JAX is tracing right now."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.extend.core
import jax.numpy as jnp

__all__ = ["is_tracer", "trace_state", "under_jit", "under_trace"]


def is_tracer(value: Any) -> bool:
    """Returns whether ``value`` stands for an array that is only known on the device."""
    return isinstance(value, jax.core.Tracer)


def trace_state() -> Any:
    """Returns a token that compares equal while the same trace is active."""
    return jax.extend.core.get_opaque_trace_state(convention="stratagem")


@functools.cache
def _clean_state() -> Any:
    with jax.core.eval_context():
        return trace_state()


def under_trace() -> bool:
    """Returns whether any JAX transformation is active in this thread."""
    return bool(trace_state() != _clean_state())


def under_jit() -> bool:
    """Returns whether operations are being staged into a program instead of run."""
    return under_trace() and is_tracer(jnp.zeros(()))
