"""Keeps unused results of a program from dead-code elimination.

JAX eliminates unused results, also the last result of a ``shard_map`` that has only callbacks. Without any
result XLA does not know that every device runs the callbacks: the program runs on one device only, or XLA
rejects it ("side-effect HLO cannot have a replicated sharding").
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

from jax.interpreters import mlir

from stratagem._src.core.types import Tensor
from stratagem._src.jax_compat.tracing import jax_core

__all__ = ["keep_result"]


def keep_result(array: Tensor, effects: Iterable[Any]) -> None:
    """Makes the program that is being traced compute an array, even if nothing uses it.

    Args:
        array: The array.
        effects: The effects of the equations that need the array.
    """
    _keep().bind(array, kept_for=frozenset(effects))


@functools.cache
def _keep() -> Any:
    primitive = jax_core().Primitive("keep_result")
    primitive.multiple_results = True
    primitive.def_effectful_abstract_eval(lambda aval, *, kept_for: ([], kept_for))
    primitive.def_impl(lambda array, *, kept_for: [])
    mlir.register_lowering(primitive, lambda ctx, array, *, kept_for: [])
    return primitive
