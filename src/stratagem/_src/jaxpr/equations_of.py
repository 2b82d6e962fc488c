"""Writes what a function computes as the equations that replace one equation of a jaxpr."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from stratagem._src.core.types import Equation, StaticValue, Tensor
from stratagem._src.jax_compat.tracing import jax_core

__all__ = ["bind_like", "equations_of", "is_sharded"]


def equations_of(function: Callable[..., Any], eqn: Equation) -> list[Equation]:
    """Returns the equations of a function, with the operands and the result of another equation."""
    avals = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in eqn.invars]
    traced = jax.make_jaxpr(function)(*avals).jaxpr
    known = dict(zip(traced.invars, eqn.invars, strict=True))
    [result] = traced.outvars
    literal = jax_core().Literal
    return [
        inner.replace(
            invars=[v if isinstance(v, literal) else known.get(v, v) for v in inner.invars],
            outvars=[eqn.outvars[0] if v is result else v for v in inner.outvars],
        )
        for inner in traced.eqns
    ]


def bind_like(eqn: Equation, operands: Sequence[Tensor], **params: StaticValue) -> Any:
    """Computes an equation with other operands and some other parameters, without its shardings."""
    shardings = {name: None for name in ("sharding", "out_sharding") if name in eqn.params}
    return eqn.primitive.bind(*operands, **{**eqn.params, **shardings, **params})


def is_sharded(eqn: Equation) -> bool:
    """Returns whether a parameter of the equation shards a dimension.

    In a ``shard_map`` there is a sharding that shards none.
    """
    shardings = [eqn.params.get(name) for name in ("sharding", "out_sharding")]
    return any(s is not None and any(s.spec) for s in shardings)
