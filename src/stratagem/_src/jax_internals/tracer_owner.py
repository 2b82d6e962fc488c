"""Which trace a traced array belongs to."""

from __future__ import annotations

from typing import Any

__all__ = ["belongs_to"]


def belongs_to(tracer: Any, trace: Any) -> bool:
    """Returns whether a traced array is of ``trace`` itself, not of one around it.

    Where JAX does not say, the answer is no.

    Args:
        tracer: The traced array.
        trace: From ``core.tracing.active_trace``.
    """
    return getattr(tracer, "_trace", None) is trace
