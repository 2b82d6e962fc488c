"""Evaluates eagerly during a trace, in a way that an interrupt cannot leave switched on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import jax

from stratagem._src.jax_compat.local_settings import with_setting
from stratagem._src.jax_compat.tracing import under_trace

try:
    from jax._src import config as _config

    _folding: Any = _config.eager_constant_folding
except (ImportError, AttributeError):  # pragma: no cover - another JAX
    _folding = None

__all__ = ["evaluate_now"]

Result = TypeVar("Result")


def evaluate_now(call: Callable[[], Result]) -> Result:
    """Returns the result of ``call``, which JAX evaluates eagerly even during a trace.

    JAX equivalent: ``with jax.ensure_compile_time_eval()``. An interrupt could leave that entered (see
    ``with_setting``): from then on this thread evaluates every operation without traced operands eagerly.
    """
    if not under_trace():
        return call()
    if _folding is None:
        with jax.ensure_compile_time_eval():
            return call()
    return with_setting(_folding, True, call)
