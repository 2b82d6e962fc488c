"""Results that nobody needs, and that a program computes nevertheless.

JAX leaves out what nobody needs, and with it the last result of a ``shard_map`` that has only callbacks.
Without any result XLA does not know that the callbacks are of each device: the program runs on one device
only, or is refused ("side-effect HLO cannot have a replicated sharding").
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jax.extend.core import Primitive
from jax.interpreters import mlir

__all__ = ["keep_result"]

_keep: Any = Primitive("keep_result")
_keep.multiple_results = True


def keep_result(array: Any, effects: Iterable[Any]) -> None:
    """Has the program that is being traced compute an array.

    Args:
        array: The array.
        effects: Of the equations for whose sake it is computed.
    """
    _keep.bind(array, kept_for=frozenset(effects))


_keep.def_effectful_abstract_eval(lambda aval, *, kept_for: ([], kept_for))
_keep.def_impl(lambda array, *, kept_for: [])
mlir.register_lowering(_keep, lambda ctx, array, *, kept_for: [])
