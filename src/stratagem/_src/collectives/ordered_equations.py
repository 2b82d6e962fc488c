"""Equations with collectives in them, of XLA's own or in loops, kept in one order."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.collective_backends.shared_memory.combination import Combination
from stratagem._src.collective_backends.shared_memory.workers import can_exchange
from stratagem._src.collectives.collective_tokens import CollectiveOrder
from stratagem._src.collectives.reduce_scatter_in_memory import (
    is_scattered_in_memory,
    scatter_in_memory,
)
from stratagem._src.jax_compat.tracing import jax_core
from stratagem._src.jaxpr.inline import FlatEquation, evaluate, value_of
from stratagem._src.jaxpr.replication_analysis import has_collectives

__all__ = ["evaluate_in_order"]

_NEW_VALUE = -1


def evaluate_in_order(
    equations: Sequence[FlatEquation],
    known: dict[int, Any],
    order: CollectiveOrder,
    change: Callable[[FlatEquation], FlatEquation],
) -> None:
    """Computes what the equations make; where it is needed, those with collectives in turn.

    Args:
        equations: The equations.
        known: Values by their numbers, to which theirs are added.
        order: The order of the collectives.
        change: Returns the equation to be evaluated in place of one with collectives.
    """
    waiting: list[FlatEquation] = []
    for equation in equations:
        has_some = has_collectives([equation.eqn])
        changed = change(equation) if has_some else equation
        if not (has_some and order.shares_memory):
            waiting.append(changed)
            continue
        evaluate(waiting, known)
        waiting = []
        _evaluate_collective(changed, known, order)
    evaluate(waiting, known)


def _evaluate_collective(
    equation: FlatEquation, known: dict[int, Any], order: CollectiveOrder
) -> None:
    if is_scattered_in_memory(equation.eqn, order):
        array = jnp.asarray(
            value_of(equation.operands[0], known), equation.eqn.invars[0].aval.dtype
        )
        [number] = equation.results
        known[number] = scatter_in_memory(array, equation.eqn.params, order)
        return
    operands, results = _passed(equation.eqn.invars), _passed(equation.eqn.outvars)
    if not operands or not results:
        evaluate([equation], known)
        return
    position = min(operands, key=operands.__getitem__)
    aval = equation.eqn.invars[position].aval
    operand = jnp.asarray(value_of(equation.operands[position], known), aval.dtype)
    bound = _with_new_operand(equation, position)

    def compute(given: Any) -> list[Any]:
        known[_NEW_VALUE] = given
        evaluate([bound], known)
        del known[_NEW_VALUE]
        return [known[equation.results[result]] for result in results]

    order.run(compute, operand)


def _with_new_operand(equation: FlatEquation, position: int) -> FlatEquation:
    """Returns an equation that takes one operand from another value, also where it is a literal."""
    atom, eqn = equation.eqn.invars[position], equation.eqn
    replaced = {i for i, other in enumerate(eqn.invars) if i == position or other is atom}
    if isinstance(atom, jax_core().Literal):
        [variable] = jax.make_jaxpr(lambda x: x)(atom.aval).jaxpr.invars
        eqn = eqn.replace(
            invars=[variable if i in replaced else v for i, v in enumerate(eqn.invars)]
        )
    operands = tuple(
        _NEW_VALUE if i in replaced else operand for i, operand in enumerate(equation.operands)
    )
    return dataclasses.replace(equation, eqn=eqn, operands=operands)


def _passed(atoms: Sequence[Any]) -> dict[int, int]:
    """Returns the bytes of those arrays that are used and can be passed on, by position."""
    return {
        i: atom.aval.size * np.dtype(atom.aval.dtype).itemsize
        for i, atom in enumerate(atoms)
        if type(atom).__name__ != "DropVar"
        and isinstance(atom.aval, jax.core.ShapedArray)
        and can_exchange(Combination.GATHER, atom.aval.dtype)
        and atom.aval.size
    }
