"""Evaluates equations with collectives that cannot be fused: XLA's own, reduce-scatters, and loops.

Where processes share memory, tokens keep these equations in one order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.collective_backends.shared_memory.collective_op import CollectiveOp
from stratagem._src.collective_backends.shared_memory.ffi_collectives import is_supported
from stratagem._src.collectives.collective_tokens import CollectiveTokens
from stratagem._src.core.types import Equation, EquationParams, Tensor
from stratagem._src.jax_compat.primitives import REDUCE_SCATTER, collective_axes, is_dropped
from stratagem._src.jax_compat.tracing import jax_core
from stratagem._src.jaxpr.evaluate import evaluate, value_of
from stratagem._src.jaxpr.inline import FlatEquation
from stratagem._src.jaxpr.replication_analysis import has_collectives
from stratagem._src.mesh.replica_group import REPLICA_AXIS

__all__ = ["evaluate_in_order"]

# The numbers of a program begin with 0, so this one is free.
_NEW_VALUE = -1


def evaluate_in_order(
    equations: Sequence[FlatEquation],
    known: dict[int, Any],
    tokens: CollectiveTokens,
    change: Callable[[FlatEquation], FlatEquation],
) -> None:
    """Evaluates equations; where tokens are needed, those with collectives one after the other.

    Args:
        equations: The equations.
        known: Values by number. The results are added to it.
        tokens: The tokens of the collectives.
        change: Returns the equation to evaluate in place of one with collectives.
    """
    waiting: list[FlatEquation] = []
    for equation in equations:
        has_some = has_collectives([equation.eqn])
        changed = change(equation) if has_some else equation
        if not (has_some and tokens.shares_memory):
            waiting.append(changed)
            continue
        evaluate(waiting, known)
        waiting = []
        _evaluate_collective(changed, known, tokens)
    evaluate(waiting, known)


def _evaluate_collective(
    equation: FlatEquation, known: dict[int, Any], tokens: CollectiveTokens
) -> None:
    if _is_reduce_scatter_on_host(equation.eqn, tokens):
        array = jnp.asarray(
            value_of(equation.operands[0], known), equation.eqn.invars[0].aval.dtype
        )
        [number] = equation.results
        known[number] = _reduce_scatter_on_host(array, equation.eqn.params, tokens)
        return
    operands, results = _passable(equation.eqn.invars), _passable(equation.eqn.outvars)
    # Nothing that a token can be attached to, such as PRNG keys alone.
    if not operands or not results:
        evaluate([equation], known)
        return
    # The token becomes a dependency of the smallest operand, because passing an operand on may copy it.
    position = min(operands, key=operands.__getitem__)
    aval = equation.eqn.invars[position].aval
    operand = jnp.asarray(value_of(equation.operands[position], known), aval.dtype)
    bound = _with_new_operand(equation, position)

    def compute(given: Tensor) -> list[Any]:
        known[_NEW_VALUE] = given
        evaluate([bound], known)
        del known[_NEW_VALUE]
        return [known[equation.results[result]] for result in results]

    tokens.run(compute, operand)


def _is_reduce_scatter_on_host(eqn: Equation, tokens: CollectiveTokens) -> bool:
    """Returns whether an equation is a ``psum_scatter`` of all replicas that our backends support."""
    if eqn.primitive.name != REDUCE_SCATTER or eqn.params["axis_index_groups"] is not None:
        return False
    is_of_all = collective_axes(eqn) == (REPLICA_AXIS,)
    return is_of_all and tokens.can_share(CollectiveOp.SCATTER, eqn.invars[0].aval)


def _reduce_scatter_on_host(array: Tensor, params: EquationParams, tokens: CollectiveTokens) -> Any:
    """Returns this replica's shard of the sum of the replicas' arrays."""
    # Our backends scatter along the first dimension only.
    dimension = params["scatter_dimension"]
    [own] = tokens.run_on_host(CollectiveOp.SCATTER, [jnp.moveaxis(array, dimension, 0)])
    return jnp.moveaxis(own, 0, dimension) if params["tiled"] else own[0]


def _with_new_operand(equation: FlatEquation, position: int) -> FlatEquation:
    """Returns an equation that takes one operand from ``_NEW_VALUE``, even if it is a literal."""
    atom, eqn = equation.eqn.invars[position], equation.eqn
    replaced = {i for i, other in enumerate(eqn.invars) if i == position or other is atom}
    # The value of a literal is in the equation: an operand passed in its place would be ignored, and with
    # it the token.
    if isinstance(atom, jax_core().Literal):
        [variable] = jax.make_jaxpr(lambda x: x)(atom.aval).jaxpr.invars
        eqn = eqn.replace(
            invars=[variable if i in replaced else v for i, v in enumerate(eqn.invars)]
        )
    operands = tuple(
        _NEW_VALUE if i in replaced else operand for i, operand in enumerate(equation.operands)
    )
    return dataclasses.replace(equation, eqn=eqn, operands=operands)


def _passable(atoms: Sequence[Any]) -> dict[int, int]:
    """Returns, by position, the bytes of arrays that are used and that a token can be attached to."""
    return {
        i: atom.aval.size * np.dtype(atom.aval.dtype).itemsize
        for i, atom in enumerate(atoms)
        if not is_dropped(atom)
        and isinstance(atom.aval, jax.core.ShapedArray)
        and is_supported(CollectiveOp.GATHER, atom.aval.dtype)
        and atom.aval.size
    }
