"""Keeps unused results of a program from dead-code elimination.

JAX eliminates unused results, also the last result of a ``shard_map`` that has only callbacks. Without any
result XLA does not know that every device runs the callbacks: the program runs on one device only, or XLA
rejects it ("side-effect HLO cannot have a replicated sharding").
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jax.extend.core import Primitive
from jax.interpreters import mlir

from stratagem._src.core.types import Tensor

__all__ = ["keep_result"]

_keep: Any = Primitive("keep_result")
_keep.multiple_results = True


def keep_result(array: Tensor, effects: Iterable[Any]) -> None:
    """Makes the program that is being traced compute an array, even if nothing uses it.

    Args:
        array: The array.
        effects: The effects of the equations that need the array.
    """
    _keep.bind(array, kept_for=frozenset(effects))


_keep.def_effectful_abstract_eval(lambda aval, *, kept_for: ([], kept_for))
_keep.def_impl(lambda array, *, kept_for: [])
mlir.register_lowering(_keep, lambda ctx, array, *, kept_for: [])
