"""Evaluates a global program in replicas that hold shards of its values.

A sum over the batch stays partial until an operation needs its value. The all-reduces of sums that are
needed at the same time are fused afterwards (``collectives/collective_fusion.py``): the gradients of a
step, its loss and its metrics become one collective.
"""

from __future__ import annotations

from collections.abc import Sequence

import stratagem._src.partitioner.rules.contractions
import stratagem._src.partitioner.rules.elementwise
import stratagem._src.partitioner.rules.indexing
import stratagem._src.partitioner.rules.partial_sums
import stratagem._src.partitioner.rules.reductions
import stratagem._src.partitioner.rules.shapes  # noqa: F401
from stratagem._src.jax_compat.primitives import ADDITIONS, COND, SCAN, WHILE
from stratagem._src.jaxpr.inline import Constant, FlatEquation, Operand
from stratagem._src.partitioner.deferred_random_bits import DeferredRandomBits
from stratagem._src.partitioner.inlined_program import FlatProgram
from stratagem._src.partitioner.layout import PARTIAL, REPLICATED, Padded, Partial, Value
from stratagem._src.partitioner.rules.padded import padded
from stratagem._src.partitioner.rules.rule import GATHER_ALL, PARTIAL_RULES, RULES, Gather
from stratagem._src.partitioner.sharding_context import ShardingContext

__all__ = ["evaluate"]

_CONTROL_FLOW = frozenset({SCAN, WHILE, COND})
"""Evaluated by their rules even if no operand is sharded: constants in their bodies may be sharded."""


def evaluate(
    ctx: ShardingContext,
    program: FlatProgram,
    inputs: Sequence[Value],
    *,
    reduce_outputs: bool = False,
    defer_sums: bool = False,
) -> list[Value]:
    """Returns the outputs of a program, each in the layout that its computation results in.

    Args:
        ctx: The replicas.
        program: The program.
        inputs: Its inputs.
        reduce_outputs: Whether to all-reduce partial outputs.
        defer_sums: Whether a replicated value plus a partial one is partial, which defers the all-reduce.
    """
    evaluation = _Evaluation(ctx, dict(zip(program.inputs, inputs, strict=True)), defer_sums)
    for equation in program.equations:
        evaluation.run(equation)
    if reduce_outputs:
        evaluation.sum(program.outputs)
    return [evaluation.value(output) for output in program.outputs]


class _Evaluation:
    def __init__(self, ctx: ShardingContext, known: dict[int, Value], defer_sums: bool) -> None:
        self._ctx = ctx
        self._known = known
        self._defer_sums = defer_sums
        self._random_bits = DeferredRandomBits(ctx, known)
        self._collective_depths: dict[int, int] = {}

    def value(self, operand: Operand) -> Value:
        if isinstance(operand, Constant):
            return Value(operand.value, REPLICATED)
        return self._random_bits.replicated(operand)

    def run(self, equation: FlatEquation) -> None:
        """Evaluates one equation. Its rule says which operands must be replicated first."""
        if not self._random_bits.defer(equation):
            results = self._apply(equation)
            # A rule may ask for one operand after the other, until it applies or all are replicated.
            while isinstance(results, Gather):
                for position in results.positions or range(len(equation.operands)):
                    self._replicate(equation.operands[position])
                results = self._apply(equation)
            self._known.update(zip(equation.results, results, strict=True))
        before = max(map(self._collective_depth, equation.operands), default=0)
        self._collective_depths.update(dict.fromkeys(equation.results, before))

    def sum(self, operands: Sequence[Operand]) -> None:
        """All-reduces those operands that are partial."""
        for operand in operands:
            if isinstance(self.value(operand).layout, Partial):
                self._replicate(operand)

    def _replicate(self, operand: Operand) -> None:
        if isinstance(operand, int) and self.value(operand).layout != REPLICATED:
            self._known[operand] = self._ctx.reshard(self.value(operand), REPLICATED)
            self._collective_depths[operand] = self._collective_depth(operand) + 1

    def _collective_depth(self, operand: Operand) -> int:
        """Returns the number of consecutive collectives that a value depends on."""
        return self._collective_depths.get(operand, 0) if isinstance(operand, int) else 0

    def _apply(self, equation: FlatEquation) -> list[Value] | Gather:
        operands = self._random_bits.operands(equation)
        is_replicated = all(value.layout == REPLICATED for value in operands)
        if is_replicated and equation.name not in _CONTROL_FLOW:
            arrays = self._ctx.bind(
                equation.primitive, equation.params, [value.array for value in operands]
            )
            return [Value(array, REPLICATED) for array in arrays]
        if any(isinstance(value.layout, Partial) for value in operands):
            return self._apply_to_partials(equation, operands)
        rule = RULES.get(equation.name)
        if equation.name != COND and any(isinstance(v.layout, Padded) for v in operands):
            rule = padded
        return GATHER_ALL if rule is None else rule(self._ctx, equation, operands)

    def _apply_to_partials(
        self, equation: FlatEquation, operands: Sequence[Value]
    ) -> list[Value] | Gather:
        layouts = {value.layout for value in operands}
        if self._defer_sums and equation.name in ADDITIONS and layouts == {REPLICATED, PARTIAL}:
            # For example `total + sum(x)` in a loop: the carried total becomes partial, and one all-reduce
            # after the loop replaces one in each iteration.
            operands = [self._ctx.as_partial(value) for value in operands]
        rule = PARTIAL_RULES.get(equation.name)
        if rule is None or self._would_add_collective(equation, operands):
            results = None
        else:
            results = rule(self._ctx, equation, operands)
        if results is None:
            return Gather(tuple(i for i, v in enumerate(operands) if isinstance(v.layout, Partial)))
        return results

    def _would_add_collective(self, equation: FlatEquation, operands: Sequence[Value]) -> bool:
        """Returns whether deferring the all-reduce of the partial operands would cost a collective.

        It would if a replicated operand depends on a later collective than the partial ones: they can
        still be part of that collective now, but would need one of their own after it.
        """
        depth: dict[bool, int] = {}
        for operand, value in zip(equation.operands, operands, strict=True):
            is_replicated = value.layout == REPLICATED
            depth[is_replicated] = max(depth.get(is_replicated, 0), self._collective_depth(operand))
        return depth.get(True, 0) > depth.get(False, 0)
