"""Doing a whole program in replicas that have parts of its values.

Sums over the batch are left undone as long as nobody needs them; those that are needed at the same time
are fused afterwards (``collectives/collective_fusion.py``). The gradients of a step, its loss and its
metrics are one collective.
"""

from __future__ import annotations

from collections.abc import Sequence

import stratagem._src.partitioner.rules.contractions
import stratagem._src.partitioner.rules.elementwise
import stratagem._src.partitioner.rules.indexing
import stratagem._src.partitioner.rules.reductions
import stratagem._src.partitioner.rules.shapes
import stratagem._src.partitioner.rules.sums  # noqa: F401
from stratagem._src.partitioner.division import Division
from stratagem._src.partitioner.inlined_program import Constant, Equation, FlatProgram
from stratagem._src.partitioner.layout import PARTIAL, WHOLE, Padded, Partial, Value
from stratagem._src.partitioner.random_draws import RandomDraws
from stratagem._src.partitioner.rules.padded import padded
from stratagem._src.partitioner.rules.rule import GATHER_ALL, RULES, SUM_RULES, Gather

__all__ = ["evaluate"]

_WITH_BODIES = frozenset({"scan", "while", "cond"})
"""Taken apart also where nothing is split: constants in them may lie on the replicas."""

_ADDITIONS = frozenset({"add", "sub", "add_any"})


def evaluate(
    division: Division,
    program: FlatProgram,
    inputs: Sequence[Value],
    *,
    sums_outputs: bool = False,
    keeps_sums: bool = False,
) -> list[Value]:
    """Returns the outputs of a program, as they come.

    Args:
        division: The replicas.
        program: What to do.
        inputs: Its inputs.
        sums_outputs: Whether outputs that are partial are added up too.
        keeps_sums: Whether something whole added to something partial is partial, so that the sum waits.
    """
    evaluation = _Evaluation(division, dict(zip(program.inputs, inputs, strict=True)), keeps_sums)
    for equation in program.equations:
        evaluation.run(equation)
    if sums_outputs:
        evaluation.sum(program.outputs)
    return [evaluation.value(output) for output in program.outputs]


class _Evaluation:
    def __init__(self, division: Division, known: dict[int, Value], keeps_sums: bool) -> None:
        self._division = division
        self._known = known
        self._keeps_sums = keeps_sums
        self._draws = RandomDraws(division, known)
        self._exchanges_before: dict[int, int] = {}

    def value(self, operand: int | Constant) -> Value:
        if isinstance(operand, Constant):
            return Value(operand.value, WHOLE)
        return self._draws.whole(operand)

    def run(self, equation: Equation) -> None:
        """Does one operation, and makes those of its operands whole that must be."""
        if not self._draws.take(equation):
            results = self._apply(equation)
            while isinstance(results, Gather):
                for position in results.positions or range(len(equation.operands)):
                    self._make_whole(equation.operands[position])
                results = self._apply(equation)
            self._known.update(zip(equation.results, results, strict=True))
        before = max(map(self._num_before, equation.operands), default=0)
        self._exchanges_before.update(dict.fromkeys(equation.results, before))

    def sum(self, operands: Sequence[int | Constant]) -> None:
        """Makes those of the operands whole that are partial."""
        for operand in operands:
            if isinstance(self.value(operand).layout, Partial):
                self._make_whole(operand)

    def _make_whole(self, operand: int | Constant) -> None:
        if isinstance(operand, int) and self.value(operand).layout != WHOLE:
            self._known[operand] = self._division.convert(self.value(operand), WHOLE)
            self._exchanges_before[operand] = self._num_before(operand) + 1

    def _num_before(self, operand: int | Constant) -> int:
        """Returns how many exchanges there are, one after the other, before a value is there."""
        return self._exchanges_before.get(operand, 0) if isinstance(operand, int) else 0

    def _apply(self, equation: Equation) -> list[Value] | Gather:
        operands = self._draws.operands(equation)
        is_whole = all(value.layout == WHOLE for value in operands)
        if is_whole and equation.name not in _WITH_BODIES:
            arrays = self._division.bind(
                equation.primitive, equation.params, [value.array for value in operands]
            )
            return [Value(array, WHOLE) for array in arrays]
        if any(isinstance(value.layout, Partial) for value in operands):
            return self._apply_to_sums(equation, operands)
        rule = RULES.get(equation.name)
        if equation.name != "cond" and any(isinstance(v.layout, Padded) for v in operands):
            rule = padded
        return GATHER_ALL if rule is None else rule(self._division, equation, operands)

    def _apply_to_sums(self, equation: Equation, operands: Sequence[Value]) -> list[Value] | Gather:
        layouts = {value.layout for value in operands}
        if self._keeps_sums and equation.name in _ADDITIONS and layouts == {WHOLE, PARTIAL}:
            operands = [self._division.addend(value) for value in operands]
        rule = SUM_RULES.get(equation.name)
        if rule is None or self._comes_late(equation, operands):
            results = None
        else:
            results = rule(self._division, equation, operands)
        if results is None:
            return Gather(tuple(i for i, v in enumerate(operands) if isinstance(v.layout, Partial)))
        return results

    def _comes_late(self, equation: Equation, operands: Sequence[Value]) -> bool:
        """Returns whether something whole is only there after an exchange that the sums can be part of.

        If they waited for it, they would need another one.
        """
        before: dict[bool, int] = {}
        for operand, value in zip(equation.operands, operands, strict=True):
            is_whole = value.layout == WHOLE
            before[is_whole] = max(before.get(is_whole, 0), self._num_before(operand))
        return before.get(True, 0) > before.get(False, 0)
