"""Collectives of a replica's program that do not depend on one another, as one.

The equations of the program are put in levels: what is computed from the result of a collective is of the
level after the collective's own. All collectives of a level travel together, whoever wrote them; what is
equal in all replicas already does not travel at all. Loops and branches are programs of their own.

The program has been differentiated before: gradients of what comes out are not those of what went in.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.collective_backends.shared_memory.workers import trace_body
from stratagem._src.collectives.collective_tokens import CollectiveOrder
from stratagem._src.collectives.exchanges import (
    Exchange,
    Kind,
    exchange_together,
    kind_of,
    known_if_equal,
    of_equal,
)
from stratagem._src.collectives.ordered_equations import evaluate_in_order
from stratagem._src.collectives.packing import DEFAULT_PACKING, packing_of_call
from stratagem._src.jaxpr.inline import (
    Constant,
    FlatEquation,
    FlatJaxpr,
    Operand,
    needed,
    value_of,
    with_bodies,
)
from stratagem._src.jaxpr.replication_analysis import (
    Body,
    ReplicaFlow,
    has_collectives,
    lasting_effects,
)
from stratagem._src.mesh.replica_group import ReplicaGroup

__all__ = ["JoinedProgram", "joined"]


def joined(
    closed: Any, differs: Sequence[bool], group: ReplicaGroup, *, is_body: bool = False
) -> Callable[..., list[Any]]:
    """Returns a function that computes what a replica's jaxpr computes, with joined collectives.

    Args:
        closed: The jaxpr; its constants are equal in all replicas.
        differs: Of each input, whether it may differ between replicas.
        group: The replicas.
        is_body: Whether it is what a loop or a branch does.
    """
    program = JoinedProgram(group)
    inputs = [program.add_input(differs=flag) for flag in differs]
    outputs = program.add(closed.jaxpr, closed.consts, inputs)

    def run(*arrays: Any) -> list[Any]:
        # XLA forgets operands of a loop that nothing in it needs, and with them whom it is to wait for.
        order = CollectiveOrder(group, after=arrays if is_body else ())
        return program.run(outputs, arrays, order)

    return run


class _Level(NamedTuple):
    equations: list[FlatEquation]
    collectives: list[FlatEquation]


class JoinedProgram(FlatJaxpr):
    """What one replica computes, put together from jaxprs that are added one after the other.

    Args:
        group: The replicas.
    """

    def __init__(self, group: ReplicaGroup) -> None:
        super().__init__(lambda eqn: has_collectives([eqn]))
        self._group = group
        self._flow = ReplicaFlow()
        self._inputs: list[int] = []
        self._differing: set[Operand] = set()
        self._packing = DEFAULT_PACKING
        # By the number of what they make: collectives, bodies of loops, sums of equal values.
        self._kinds: dict[Operand, Kind] = {}
        self._bodies: dict[Operand, list[Body]] = {}
        self._multiples: dict[Operand, Operand] = {}
        self._made_at: dict[Operand, int] = {}
        self._same: dict[Any, tuple[Operand, ...]] = {}

    def add_input(self, *, differs: bool) -> int:
        """Returns the number of a new input."""
        number = self.new_value()
        self._inputs.append(number)
        if differs:
            self._differing.add(number)
        return number

    def differs(self, operand: Operand) -> bool:
        """Returns whether a value may differ between replicas."""
        if isinstance(operand, Constant) and self._group.spans_processes:
            # Numbers are a part of the program, on which processes agree; arrays are not.
            return isinstance(operand.value, jax.Array) or np.ndim(operand.value) > 0
        return operand in self._differing

    def add_call(self, eqn: Any, called: Any, operands: Sequence[Operand]) -> Sequence[Operand]:
        """Adds what an equation calls; its name may say how collectives are to be packed."""
        before, self._packing = self._packing, packing_of_call(eqn) or self._packing
        results = super().add_call(eqn, called, operands)
        self._packing = before
        return results

    def add_equation(
        self, eqn: Any, opened: tuple[Any, int], operands: tuple[Operand, ...]
    ) -> Sequence[Operand]:
        """Adds one equation, or what is the same but needs no exchange."""
        kind = kind_of(eqn, self._packing)
        if kind is not None:
            return self._add_collective(kind, eqn, opened, operands)
        if eqn.primitive.name == "div" and self._divides_by_count(operands):
            return [self._multiples[operands[0]]]
        return self._add_checked(eqn, opened, operands)

    def _add_collective(
        self, kind: Kind, eqn: Any, opened: tuple[Any, int], operands: tuple[Operand, ...]
    ) -> Sequence[Operand]:
        [operand], aval = operands, eqn.invars[0].aval
        params = {k: eqn.params.get(k) for k in ("all_gather_dimension", "tiled")}
        key = (operand, kind, *params.values())
        if key in self._same:
            return self._same[key]
        if self.differs(operand) or not known_if_equal(kind, aval.dtype, self._group):
            results = tuple(self._add_checked(eqn, opened, operands))
            self._kinds[results[0]] = kind
        else:
            traced = jax.make_jaxpr(lambda x: of_equal(kind, x, eqn.params, self._group))(aval)
            results = tuple(self.add(traced.jaxpr, traced.consts, operands))
            if kind.name == "psum" and jnp.issubdtype(aval.dtype, jnp.inexact):
                self._multiples[results[0]] = operand
        self._same[key] = results
        return results

    def _add_checked(
        self, eqn: Any, opened: tuple[Any, int], operands: tuple[Operand, ...]
    ) -> Sequence[Operand]:
        """Adds one equation, and notes which of its results may differ."""
        differs = [self.differs(operand) for operand in operands]
        flags = self._flow.results(eqn, differs)
        results = super().add_equation(eqn, opened, operands)
        self._differing.update(n for n, flag in zip(results, flags, strict=True) if flag)
        self._made_at.update((number, len(self.equations)) for number in results)
        if results and has_collectives([eqn]):
            self._bodies[results[0]] = self._flow.bodies(eqn, differs)
        return results

    def _divides_by_count(self, operands: Sequence[Operand]) -> bool:
        """Returns whether the sum of equal values is divided by the number of replicas."""
        total, divisor = operands
        return (
            total in self._multiples
            and isinstance(divisor, Constant)
            and isinstance(divisor.value, (int, float, np.generic, np.ndarray))
            and np.ndim(divisor.value) == 0
            and bool(divisor.value == self._group.size)
        )

    def run(
        self, outputs: Sequence[Operand], arrays: Sequence[Any], order: CollectiveOrder
    ) -> list[Any]:
        """Returns the outputs, given the inputs; to be called inside the program of the replicas."""
        known = dict(zip(self._inputs, arrays, strict=True))
        equations = needed(self.equations, outputs, lasting_effects)
        for level in self._levels(equations):
            evaluate_in_order(level.equations, known, order, self._with_joined_bodies)
            self._exchange(level.collectives, known, order)
        return [value_of(output, known) for output in outputs]

    def _levels(self, equations: Iterable[FlatEquation]) -> list[_Level]:
        levels = [_Level([], [])]
        level_of: dict[Operand, int] = {}
        of_last_effect = 0
        for equation in equations:
            level = max((level_of.get(o, 0) for o in equation.operands), default=0)
            if lasting_effects(equation.eqn):
                # In the order in which they were written.
                level = of_last_effect = max(level, of_last_effect)
            if equation.results and equation.results[0] in self._kinds:
                levels[level].collectives.append(equation)
                level += 1
            else:
                levels[level].equations.append(equation)
            if level == len(levels):
                levels.append(_Level([], []))
            level_of.update((number, level) for number in equation.results)
        return levels

    def _exchange(
        self, collectives: Sequence[FlatEquation], known: dict[int, Any], order: CollectiveOrder
    ) -> None:
        # In the order in which they are ready, so that the first can be on their way early.
        ready = sorted(collectives, key=lambda c: self._made_at.get(c.operands[0], 0))
        exchanges = [
            Exchange(
                self._kinds[c.results[0]],
                jnp.asarray(value_of(c.operands[0], known), c.eqn.invars[0].aval.dtype),
                c.eqn.params,
            )
            for c in ready
        ]
        results = exchange_together(exchanges, self._group, order)
        known.update((c.results[0], result) for c, result in zip(ready, results, strict=True))

    def _with_joined_bodies(self, equation: FlatEquation) -> FlatEquation:
        bodies = self._bodies.get(equation.results[0]) if equation.results else None
        if not bodies:
            return equation
        differs = {(body.param, body.position): body.differs for body in bodies}

        def change(param: str, position: int | None, body: Any) -> Any:
            is_plain = all(isinstance(aval, jax.core.ShapedArray) for aval in body.in_avals)
            if not is_plain or (param, position) not in differs:
                return body
            run = joined(body, differs[param, position], self._group, is_body=True)
            return trace_body(run, body.in_avals)

        return dataclasses.replace(equation, eqn=with_bodies(equation.eqn, change))
