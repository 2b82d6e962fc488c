"""Computes on arrays whose last dimension is split in two as on the unsplit ones.

Group normalisation splits the channels into groups: ``(batch, height, width, 8, 2)``. XLA's CPU compiler
vectorises along the last dimension, which then has two elements. Elementwise operations, broadcasts and
reductions over other dimensions compute the same on ``(batch, height, width, 16)``, and a reshape between
the two forms costs nothing. Only the order of the additions of a sum changes.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax

from stratagem._src.core.types import Equation, Jaxpr, Tensor
from stratagem._src.jax_compat.primitives import (
    BROADCAST,
    ELEMENTWISE,
    PLAIN_REDUCTIONS,
    RESHAPE,
)
from stratagem._src.jax_compat.tracing import jax_core
from stratagem._src.jaxpr.equations_of import bind_like, equations_of, is_sharded
from stratagem._src.jaxpr.walk import all_equations, map_inner_jaxprs

__all__ = ["merge_split_dims"]

_MIN_SIZE = 2**12
_MAX_LAST_DIM = 15
"""Dimensions of 16 elements fill the widest vector registers."""

Shape: TypeAlias = tuple[int, ...]


def merge_split_dims(jaxpr: Jaxpr) -> Jaxpr:
    """Returns ``jaxpr`` with operations on merged instead of split dimensions.

    The shapes in question are those that a ``reshape`` makes of an array with one dimension less. Inputs
    and outputs stay the same variables. Bodies of loops, conditionals, calls and ``shard_map`` are
    rewritten too.
    """
    shapes = _split_shapes(jaxpr)
    return _rewrite(jaxpr, shapes) if shapes else jaxpr


def _split_shapes(jaxpr: Jaxpr) -> frozenset[Shape]:
    """Returns the shapes whose last two dimensions are one in another form of the array."""
    found = set()
    for eqn in all_equations(jaxpr):
        if eqn.primitive.name == RESHAPE:
            shapes = [eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape]
            merged, split = sorted(shapes, key=len)
            if not merged or len(split) != len(merged) + 1:
                continue
            if _merged(split) == merged and _is_slow(split):
                found.add(split)
    return frozenset(found)


def _is_slow(shape: Shape) -> bool:
    *_, groups, last = shape
    return groups > 1 and 1 < last <= _MAX_LAST_DIM and math.prod(shape) >= _MIN_SIZE


def _merged(shape: Shape) -> Shape:
    return (*shape[:-2], shape[-2] * shape[-1])


def _rewrite(jaxpr: Jaxpr, shapes: frozenset[Shape]) -> Jaxpr:
    body = functools.partial(_rewrite_body, shapes)
    eqns: list[Equation] = []
    for eqn in jaxpr.eqns:
        eqn = map_inner_jaxprs(eqn, body)
        merged = _merged_operation(eqn, shapes)
        eqns.extend([eqn] if merged is None else equations_of(merged, eqn))
    is_same = len(eqns) == len(jaxpr.eqns) and all(map(operator.is_, eqns, jaxpr.eqns))
    return jaxpr if is_same else jaxpr.replace(eqns=eqns)


def _rewrite_body(shapes: frozenset[Shape], name: str, position: int | None, body: Jaxpr) -> Jaxpr:
    jaxpr = _rewrite(body.jaxpr, shapes)
    return body if jaxpr is body.jaxpr else jax_core().ClosedJaxpr(jaxpr, body.consts)


def _merged_operation(eqn: Equation, shapes: frozenset[Shape]) -> Callable[..., Any] | None:
    """Returns a function that computes what an equation does on merged dims; ``None`` if there is none."""
    name = eqn.primitive.name
    if len(eqn.outvars) != 1 or not eqn.invars or is_sharded(eqn):
        return None
    shape, first = eqn.outvars[0].aval.shape, eqn.invars[0].aval
    if name in ELEMENTWISE and shape in shapes:
        is_aligned = all(v.aval.ndim in (0, len(shape)) for v in eqn.invars)
        return functools.partial(_elementwise, eqn, shape) if is_aligned else None
    if name == BROADCAST and shape in shapes and len(eqn.invars) == 1:
        return functools.partial(_broadcast, shape, eqn.params["broadcast_dimensions"])
    if name in PLAIN_REDUCTIONS and first.shape in shapes:
        reduces_rows = any(axis < first.ndim - 2 for axis in eqn.params["axes"])
        return functools.partial(_reduced, eqn) if reduces_rows else None
    return None


def _elementwise(eqn: Equation, shape: Shape, *operands: Tensor) -> Any:
    merged = [_merged_operand(x, shape) if x.ndim else x for x in operands]
    return jax.lax.reshape(bind_like(eqn, merged), shape)


def _merged_operand(operand: Tensor, shape: Shape) -> Any:
    """Returns an operand of an elementwise operation, which may have dimensions of 1, with merged dims."""
    last = (1, 1) if operand.shape[-2:] == (1, 1) else shape[-2:]
    return _merged_broadcast(operand, (*operand.shape[:-2], *last), range(operand.ndim))


def _broadcast(shape: Shape, dims: Sequence[int], operand: Tensor) -> Any:
    return jax.lax.reshape(_merged_broadcast(operand, shape, dims), shape)


def _merged_broadcast(operand: Tensor, shape: Shape, dims: Sequence[int]) -> Any:
    """Returns an operand broadcast to a shape, with the last two dimensions merged.

    The last two dimensions are broadcast first, while the array is small: then they can be merged.
    """
    first = len(shape) - 2
    kept = [position for position, dim in enumerate(dims) if dim < first]
    if len(kept) < len(dims):
        sizes = [operand.shape[position] for position in kept]
        places = [
            kept.index(position) if dim < first else len(kept) + dim - first
            for position, dim in enumerate(dims)
        ]
        operand = jax.lax.broadcast_in_dim(operand, (*sizes, *shape[first:]), places)
        operand = jax.lax.reshape(operand, (*sizes, math.prod(shape[first:])))
        kept_dims = [*(dims[position] for position in kept), first]
    else:
        kept_dims = list(dims)
    return jax.lax.broadcast_in_dim(operand, _merged(shape), kept_dims)


def _reduced(eqn: Equation, operand: Tensor) -> Any:
    """Reduces the dimensions before the last two, and then, of a small array, those."""
    shape, axes = operand.shape, eqn.params["axes"]
    before = tuple(axis for axis in axes if axis < len(shape) - 2)
    after = tuple(axis - len(before) for axis in axes if axis >= len(shape) - 2)
    merged = jax.lax.reshape(operand, _merged(shape))
    rows = bind_like(eqn, [merged], axes=before)
    rows = jax.lax.reshape(rows, (*rows.shape[:-1], *shape[-2:]))
    return bind_like(eqn, [rows], axes=after) if after else rows
