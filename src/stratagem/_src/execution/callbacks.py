"""Catches exceptions of host callbacks inside compiled steps.

When a ``jax.pure_callback``, ``jax.experimental.io_callback`` or ``jax.debug.callback`` raises on one
device, the others wait in their next collective until XLA aborts the process. So each callback of a
step is wrapped: it stores an exception and returns zeros, the program ends as usual, and then the call
raises the exception.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from stratagem._src.core.errors import ReplicaMismatchError
from stratagem._src.core.types import Equation, Jaxpr, PyTree, StaticValue, Tensor
from stratagem._src.jax_compat.host_callbacks import with_thread_pool_bypass
from stratagem._src.jax_compat.primitives import CALLBACKS
from stratagem._src.jaxpr.walk import rewrite_equations
from stratagem._src.mesh.dispatch_queue import in_host_callback
from stratagem._src.mesh.process_monitor import process_monitor

__all__ = ["guard_callbacks", "wait_for_callbacks"]


class _Guarded:
    """Calls a callback and stores its exception."""

    def __init__(
        self,
        callback: Callable[..., Any],
        result_avals: Sequence[Any],
        errors: list[BaseException],
    ) -> None:
        self._callback = callback
        self._result_avals = result_avals
        self._errors = errors

    def __call__(self, *args: Tensor, **kwargs: StaticValue) -> Any:
        try:
            with in_host_callback():
                return self._callback(*args, **kwargs)
        except (
            BaseException
        ) as error:  # also an interrupt (Ctrl-C), which XLA would turn into its own
            self._errors.append(error)
            return [np.zeros(aval.shape, aval.dtype) for aval in self._result_avals]


def guard_callbacks(jaxpr: Jaxpr, errors: list[BaseException]) -> tuple[Any, bool]:
    """Returns ``jaxpr`` with every callback guarded, and whether any callback can fail.

    The arguments of a callback are ready when it starts: see ``with_thread_pool_bypass``.

    Args:
        jaxpr: A ``Jaxpr`` that will not be differentiated or batched any more.
        errors: The list to which callbacks add their exceptions.
    """
    guard = _Guard(errors)
    guarded = rewrite_equations(jaxpr, guard.rewrite)
    return guarded, guard.found


class _Guard:
    """Guards the callbacks of a jaxpr and of its inner jaxprs.

    Args:
        errors: The list to which callbacks add their exceptions.

    Attributes:
        found: Whether one of them calls a function of the user.
    """

    def __init__(self, errors: list[BaseException]) -> None:
        self._errors = errors
        self.found = False

    def rewrite(self, eqn: Equation) -> Equation | None:
        """Returns a guarded callback; ``None`` for any other equation."""
        if eqn.primitive.name not in CALLBACKS:
            return None
        return with_thread_pool_bypass(self._callback(eqn))

    def _callback(self, eqn: Equation) -> Any:
        callback = eqn.params.get("callback")
        if callback is None:  # jax.debug.print, which only prints
            return eqn
        self.found = True
        guarded = _Guarded(callback, eqn.params.get("result_avals", ()), self._errors)
        return eqn.replace(params={**eqn.params, "callback": guarded})


def wait_for_callbacks(
    errors: list[BaseException], results: PyTree, multi_process_name: str | None = None
) -> None:
    """Waits for the callbacks of a launched program, and raises the first of their exceptions.

    Args:
        errors: The list that ``guard_callbacks`` got; it is empty afterwards.
        results: The results of the program.
        multi_process_name: The name of a program that several processes run together: all of them raise if
            a callback fails in one.
    """
    jax.block_until_ready(results)
    jax.effects_barrier()
    error = errors[0] if errors else None
    errors.clear()
    if multi_process_name is not None:
        told = None if error is None else repr(error)
        every = process_monitor().all_gather_object(
            "callbacks", told, f"callbacks of {multi_process_name}"
        )
        failed = [f"process {i}: {text}" for i, text in enumerate(every) if text is not None]
        if error is None and failed:
            raise ReplicaMismatchError(
                f"A host callback of {multi_process_name} failed in another process, so no variable is "
                f"updated here either; {'; '.join(failed)}."
            )
    if error is not None:
        raise error
