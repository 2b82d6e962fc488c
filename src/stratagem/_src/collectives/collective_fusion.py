"""Fuses the independent collectives of a replica's program.

The equations of the program are divided into levels: a value that is computed from the result of a
collective belongs to the level after that collective. All collectives of a level are fused, wherever they
come from; a collective of a replicated value needs no communication. The bodies of loops and branches are
fused as programs of their own.

Differentiate the program before this pass: the derivative of its result is not that of the original.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.collective_backends.shared_memory.ffi_collectives import trace_body
from stratagem._src.collectives.collective_tokens import CollectiveTokens
from stratagem._src.collectives.fusible_collectives import (
    FusionKey,
    PendingCollective,
    fusion_key,
    is_known_if_replicated,
    result_if_replicated,
    run_fused,
)
from stratagem._src.collectives.ordered_equations import evaluate_in_order
from stratagem._src.collectives.packing import DEFAULT_PACKING, packing_of_call
from stratagem._src.core.types import Equation, Jaxpr, Tensor
from stratagem._src.jax_compat.primitives import DIV, PSUM
from stratagem._src.jaxpr.dead_code import eliminate_dead_code
from stratagem._src.jaxpr.evaluate import value_of
from stratagem._src.jaxpr.inline import Constant, FlatEquation, FlatJaxpr, Operand
from stratagem._src.jaxpr.replication_analysis import (
    Body,
    ReplicationAnalysis,
    has_collectives,
    has_side_effects,
)
from stratagem._src.jaxpr.walk import map_inner_jaxprs
from stratagem._src.mesh.replica_group import ReplicaGroup

__all__ = ["FusedProgram", "fuse_collectives"]


def fuse_collectives(
    closed: Jaxpr, varying: Sequence[bool], group: ReplicaGroup, *, is_body: bool = False
) -> Callable[..., list[Any]]:
    """Returns a function that computes what a replica's jaxpr computes, with fused collectives.

    Args:
        closed: The jaxpr. Its constants are the same in all replicas.
        varying: Whether each input may differ between replicas.
        group: The replicas.
        is_body: Whether the jaxpr is the body of a loop or a branch.
    """
    program = FusedProgram(group)
    inputs = [program.add_input(varying=flag) for flag in varying]
    outputs = program.add(closed.jaxpr, [*map(Constant, closed.consts), *inputs])

    def run(*arrays: Tensor) -> list[Any]:
        # XLA drops operands of a loop that its body does not use. The token depends on all of them, so that
        # the body starts after everything that the loop has to wait for.
        tokens = CollectiveTokens(group, after=arrays if is_body else ())
        return program.run(outputs, arrays, tokens)

    return run


class _Level(NamedTuple):
    equations: list[FlatEquation]
    collectives: list[FlatEquation]


class FusedProgram(FlatJaxpr):
    """The program of one replica, built from jaxprs that are added one after the other.

    Args:
        group: The replicas.
    """

    def __init__(self, group: ReplicaGroup) -> None:
        super().__init__(lambda eqn: has_collectives([eqn]))
        self._group = group
        self._analysis = ReplicationAnalysis()
        self._inputs: list[int] = []
        self._varying: set[Operand] = set()
        self._packing = DEFAULT_PACKING
        # By the number of their first result: collectives, bodies of loops. By the number of a sum over
        # the replicas of a replicated value: that value.
        self._keys: dict[Operand, FusionKey] = {}
        self._bodies: dict[Operand, list[Body]] = {}
        self._multiples: dict[Operand, Operand] = {}
        self._made_at: dict[Operand, int] = {}
        self._same: dict[Any, tuple[Operand, ...]] = {}

    def add_input(self, *, varying: bool) -> int:
        """Returns the number of a new input."""
        number = self.new_value()
        self._inputs.append(number)
        if varying:
            self._varying.add(number)
        return number

    def is_varying(self, operand: Operand) -> bool:
        """Returns whether a value may differ between replicas."""
        if isinstance(operand, Constant) and self._group.spans_processes:
            # All processes run the same program, which contains scalars; arrays are passed to it.
            return isinstance(operand.value, jax.Array) or np.ndim(operand.value) > 0
        return operand in self._varying

    def add_call(
        self, eqn: Equation, called: Jaxpr, operands: Sequence[Operand]
    ) -> Sequence[Operand]:
        """Adds the jaxpr that an equation calls; its name may say how to pack the collectives in it."""
        before, self._packing = self._packing, packing_of_call(eqn) or self._packing
        results = super().add_call(eqn, called, operands)
        self._packing = before
        return results

    def add_equation(
        self, eqn: Equation, scope: tuple[Jaxpr, int], operands: tuple[Operand, ...]
    ) -> Sequence[Operand]:
        """Adds one equation, or an equivalent that needs no communication."""
        fusion = fusion_key(eqn, self._packing)
        if fusion is not None:
            return self._add_collective(fusion, eqn, scope, operands)
        # The mean of a replicated value is the value itself; to multiply and divide by the count may round.
        if eqn.primitive.name == DIV and self._divides_by_count(operands):
            return [self._multiples[operands[0]]]
        return self._add_checked(eqn, scope, operands)

    def _add_collective(
        self,
        fusion: FusionKey,
        eqn: Equation,
        scope: tuple[Jaxpr, int],
        operands: tuple[Operand, ...],
    ) -> Sequence[Operand]:
        [operand], aval = operands, eqn.invars[0].aval
        params = {k: eqn.params.get(k) for k in ("all_gather_dimension", "tiled")}
        # The same collective of the same value is run once.
        key = (operand, fusion, *params.values())
        if key in self._same:
            return self._same[key]
        if self.is_varying(operand) or not is_known_if_replicated(fusion, aval.dtype, self._group):
            results = tuple(self._add_checked(eqn, scope, operands))
            self._keys[results[0]] = fusion
        else:
            traced = jax.make_jaxpr(
                lambda x: result_if_replicated(fusion, x, eqn.params, self._group)
            )(aval)
            results = tuple(self.add(traced.jaxpr, [*map(Constant, traced.consts), *operands]))
            if fusion.name == PSUM and jnp.issubdtype(aval.dtype, jnp.inexact):
                self._multiples[results[0]] = operand
        self._same[key] = results
        return results

    def _add_checked(
        self, eqn: Equation, scope: tuple[Jaxpr, int], operands: tuple[Operand, ...]
    ) -> Sequence[Operand]:
        """Adds one equation, and records which of its results vary between replicas."""
        varying = [self.is_varying(operand) for operand in operands]
        flags = self._analysis.results(eqn, varying)
        results = super().add_equation(eqn, scope, operands)
        self._varying.update(n for n, flag in zip(results, flags, strict=True) if flag)
        self._made_at.update((number, len(self.equations)) for number in results)
        if results and has_collectives([eqn]):
            self._bodies[results[0]] = self._analysis.bodies(eqn, varying)
        return results

    def _divides_by_count(self, operands: Sequence[Operand]) -> bool:
        """Returns whether a sum of a replicated value is divided by the number of replicas: a mean."""
        total, divisor = operands
        return (
            total in self._multiples
            and isinstance(divisor, Constant)
            and isinstance(divisor.value, (int, float, np.generic, np.ndarray))
            and np.ndim(divisor.value) == 0
            and bool(divisor.value == self._group.size)
        )

    def run(
        self, outputs: Sequence[Operand], arrays: Sequence[Any], tokens: CollectiveTokens
    ) -> list[Any]:
        """Returns the outputs for the inputs, inside the program that all replicas run."""
        known = dict(zip(self._inputs, arrays, strict=True))
        equations = eliminate_dead_code(self.equations, outputs, has_side_effects)
        # All equations of a level, then its collectives: their results are used by later levels only.
        for level in self._levels(equations):
            evaluate_in_order(level.equations, known, tokens, self._with_fused_bodies)
            self._run_collectives(level.collectives, known, tokens)
        return [value_of(output, known) for output in outputs]

    def _levels(self, equations: Iterable[FlatEquation]) -> list[_Level]:
        # For `s1, s2 = psum(g1), psum(g2); n = norm(s1, s2) * x; m = pmax(n)`:
        #     level 0: g1, g2; then psum of both, fused
        #     level 1: n; then pmax
        #     level 2: whatever uses m
        # The gradients may come from different calls of `value_and_grad`: only the data dependencies
        # count.
        levels = [_Level([], [])]
        level_of: dict[Operand, int] = {}
        of_last_effect = 0
        for equation in equations:
            level = max((level_of.get(o, 0) for o in equation.operands), default=0)
            if has_side_effects(equation.eqn):
                # Effects keep their order in the program.
                level = of_last_effect = max(level, of_last_effect)
            if equation.results and equation.results[0] in self._keys:
                # Its result is available from the next level on.
                levels[level].collectives.append(equation)
                level += 1
            else:
                levels[level].equations.append(equation)
            if level == len(levels):
                levels.append(_Level([], []))
            level_of.update((number, level) for number in equation.results)
        return levels

    def _run_collectives(
        self, collectives: Sequence[FlatEquation], known: dict[int, Any], tokens: CollectiveTokens
    ) -> None:
        # Sorted by when their operands are ready, so that the first packs can be sent early.
        ready = sorted(collectives, key=lambda c: self._made_at.get(c.operands[0], 0))
        pending = [
            PendingCollective(
                self._keys[c.results[0]],
                jnp.asarray(value_of(c.operands[0], known), c.eqn.invars[0].aval.dtype),
                c.eqn.params,
            )
            for c in ready
        ]
        results = run_fused(pending, self._group, tokens)
        known.update((c.results[0], result) for c, result in zip(ready, results, strict=True))

    def _with_fused_bodies(self, equation: FlatEquation) -> FlatEquation:
        bodies = self._bodies.get(equation.results[0]) if equation.results else None
        if not bodies:
            return equation
        varying = {(body.param, body.position): body.varying for body in bodies}

        def change(param: str, position: int | None, body: Jaxpr) -> Any:
            is_plain = all(isinstance(aval, jax.core.ShapedArray) for aval in body.in_avals)
            if not is_plain or (param, position) not in varying:
                return body
            run = fuse_collectives(body, varying[param, position], self._group, is_body=True)
            return trace_body(run, body.in_avals)

        return dataclasses.replace(equation, eqn=map_inner_jaxprs(equation.eqn, change))
