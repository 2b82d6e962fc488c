"""Errors of host callbacks inside compiled steps.

When a ``jax.pure_callback``, ``jax.experimental.io_callback`` or ``jax.debug.callback`` raises on one
device, the others wait in their next collective until XLA aborts the process. So each callback of a
step is wrapped: an exception is kept, the callback returns zeros, the program ends as usual, and then
the exception is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stratagem._src.core.tracing import jax_core
from stratagem._src.mesh.program_queue import in_host_callback

__all__ = ["guard_callbacks"]

_CALLBACKS = {"pure_callback", "io_callback", "debug_callback"}


class _Guarded:
    """Calls a callback and keeps its exception."""

    def __init__(
        self,
        callback: Callable[..., Any],
        result_avals: Sequence[Any],
        errors: list[BaseException],
    ) -> None:
        self._callback = callback
        self._result_avals = result_avals
        self._errors = errors

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            with in_host_callback():
                return self._callback(*args, **kwargs)
        except Exception as error:
            self._errors.append(error)
            return [np.zeros(aval.shape, aval.dtype) for aval in self._result_avals]


def guard_callbacks(jaxpr: Any, errors: list[BaseException]) -> tuple[Any, bool]:
    """Returns ``jaxpr`` with every callback guarded, and whether there is any.

    Args:
        jaxpr: A ``Jaxpr``.
        errors: Where exceptions of the callbacks are put.
    """
    found = False
    eqns = []
    for eqn in jaxpr.eqns:
        changes: dict[str, Any] = {}
        if eqn.primitive.name in _CALLBACKS:
            avals = eqn.params.get("result_avals", ())
            changes["callback"] = _Guarded(eqn.params["callback"], avals, errors)
        for key, value in eqn.params.items():
            guarded, inside = _guard_param(value, errors)
            if inside:
                changes[key] = guarded
        found = found or bool(changes)
        eqns.append(eqn.replace(params={**eqn.params, **changes}) if changes else eqn)
    return (jaxpr.replace(eqns=eqns), True) if found else (jaxpr, False)


def _guard_param(value: Any, errors: list[BaseException]) -> tuple[Any, bool]:
    if isinstance(value, jax_core().ClosedJaxpr):
        guarded, found = guard_callbacks(value.jaxpr, errors)
        return (value.replace(jaxpr=guarded), True) if found else (value, False)
    if isinstance(value, jax_core().Jaxpr):
        return guard_callbacks(value, errors)
    if isinstance(value, tuple) and value:
        pairs = [_guard_param(item, errors) for item in value]
        return tuple(item for item, _ in pairs), any(found for _, found in pairs)
    return value, False
