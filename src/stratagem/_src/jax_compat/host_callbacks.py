"""Host callbacks whose arguments do not need XLA's thread pool.

JAX passes arguments to a callback with ``jax.device_put``. On CPU that copies an array of more than 100 kB
in XLA's client thread pool, and the first access to the array waits for the copy. The pool has a thread for
each device, and a device that waits in a collective blocks its thread. If the others wait for the callback,
no thread is left for the copy: a deadlock.

Here the arguments are copied by the thread that calls back, to an address from which JAX takes them over
as they are; ``poolless_calls`` does the same for what the callback itself puts on devices.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.interpreters import mlir

from stratagem._src.core.types import ArrayLike, ArraySpec, Equation, Jaxpr, PyTree, Tensor
from stratagem._src.jax_compat.host_device import host_device
from stratagem._src.jax_compat.thread_pool_bypass import aligned, bypass_thread_pool
from stratagem._src.jax_compat.tracing import jax_core

__all__ = ["with_thread_pool_bypass"]


def with_thread_pool_bypass(eqn: Equation) -> Any:
    """Returns a callback's equation as one whose arguments are ready when the callback begins.

    Args:
        eqn: The equation of a callback, which must not be differentiated or batched afterwards.
    """
    return eqn.replace(primitive=_host_callback(), params={**eqn.params, "called": eqn.primitive})


def _abstract(*avals: ArraySpec, called: Jaxpr, **params: Any) -> Any:
    return called.abstract_eval(*avals, **params)


def _run(*args: PyTree, called: Jaxpr, **params: Any) -> Any:
    return called.bind(*args, **params)


def _lower(ctx: Any, *operands: Tensor, called: Jaxpr, **params: Any) -> Any:
    """Lowers as JAX does, and wraps the Python function that the program calls."""
    module: Any = ctx.module_context
    first = len(module.host_callbacks)
    lowered = mlir.lower_fun(lambda *args: called.bind(*args, **params))(ctx, *operands)
    if tuple(module.platforms) == ("cpu",):
        module.host_callbacks[first:] = map(_taking_over, module.host_callbacks[first:])
    return lowered


@functools.cache
def _host_callback() -> Any:
    primitive = jax_core().Primitive("host_callback")
    primitive.multiple_results = True
    primitive.def_effectful_abstract_eval(_abstract)
    primitive.def_impl(_run)
    # Not cacheable: each callback has its own index among those of the program.
    mlir.register_lowering(primitive, _lower, cacheable=False)
    return primitive


def _taking_over(callback: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: PyTree) -> Any:
        device = host_device() or jax.local_devices()[0]
        with bypass_thread_pool():
            return callback(*(_taken_over(arg, device) for arg in args))

    return call


def _taken_over(arg: ArrayLike, device: jax.Device) -> Any:
    """Returns an argument on a device, without a copy in XLA's thread pool."""
    if not isinstance(arg, np.ndarray):  # the token of ordered callbacks
        return arg
    return jax.device_put(aligned(arg), device)
