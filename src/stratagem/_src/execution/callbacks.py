"""Errors of host callbacks inside compiled steps.

When a ``jax.pure_callback``, ``jax.experimental.io_callback`` or ``jax.debug.callback`` raises on one
device, the others wait in their next collective until XLA aborts the process. So each callback of a
step is wrapped: an exception is kept, the callback returns zeros, the program ends as usual, and then
the exception is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from stratagem._src.core.errors import ReplicaMismatchError
from stratagem._src.core.tracing import jax_core
from stratagem._src.mesh.program_queue import in_host_callback, process_watch

__all__ = ["guard_callbacks", "wait_for_callbacks"]

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


def wait_for_callbacks(
    errors: list[BaseException], results: Any, joint_name: str | None = None
) -> None:
    """Waits for the callbacks of a program that was launched, and raises the first error of them.

    Args:
        errors: Where ``guard_callbacks`` has them put; it is empty afterwards.
        results: The program's.
        joint_name: What several processes call a program that they run together: then all of them raise
            if callbacks of one failed.
    """
    jax.block_until_ready(results)
    jax.effects_barrier()
    error = errors[0] if errors else None
    errors.clear()
    if joint_name is not None:
        told = None if error is None else repr(error)
        every = process_watch().exchange("callbacks", told, f"callbacks of {joint_name}")
        failed = [f"process {i}: {text}" for i, text in enumerate(every) if text is not None]
        if error is None and failed:
            raise ReplicaMismatchError(
                f"A host callback of {joint_name} failed in another process, so that no variable is "
                f"updated here either; {'; '.join(failed)}."
            )
    if error is not None:
        raise error


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
