"""Doing a whole program in replicas that have parts of its values.

Sums over the batch are left undone as long as nobody needs them: an operation that needs one waits,
with all that depends on it, while the others go on. When nothing else can be done, all sums that are
needed travel together. So the gradients of a step, its loss and its metrics are one exchange.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import stratagem._src.batch_parallel.rules.contractions
import stratagem._src.batch_parallel.rules.elementwise
import stratagem._src.batch_parallel.rules.indexing
import stratagem._src.batch_parallel.rules.reductions
import stratagem._src.batch_parallel.rules.shapes
import stratagem._src.batch_parallel.rules.sums  # noqa: F401
from stratagem._src.batch_parallel.division import Division
from stratagem._src.batch_parallel.flat_program import Constant, Equation, FlatProgram
from stratagem._src.batch_parallel.layout import PARTIAL, WHOLE, Partial, Split, Value
from stratagem._src.batch_parallel.rules.rule import GATHER_ALL, RULES, SUM_RULES, Gather

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
    wanted = program.outputs if sums_outputs else ()
    remaining: Sequence[Equation] = program.equations
    while remaining := evaluation.run(remaining):
        evaluation.exchange(wanted)
    evaluation.exchange(wanted)
    return [evaluation.value(output) for output in program.outputs]


class _Evaluation:
    def __init__(self, division: Division, known: dict[int, Value], keeps_sums: bool) -> None:
        self._division = division
        self._known = known
        self._keeps_sums = keeps_sums
        self._needed_whole: dict[int, None] = {}

    def value(self, operand: int | Constant) -> Value:
        if isinstance(operand, Constant):
            return Value(operand.value, WHOLE)
        return self._known[operand]

    def run(self, equations: Iterable[Equation]) -> list[Equation]:
        """Does what can be done, and returns what has to wait for an exchange."""
        waiting = []
        for equation in equations:
            is_ready = all(isinstance(o, Constant) or o in self._known for o in equation.operands)
            results = self._apply(equation) if is_ready else None
            if results is None:
                waiting.append(equation)
            else:
                self._known.update(zip(equation.results, results, strict=True))
        return waiting

    def exchange(self, wanted: Sequence[int | Constant]) -> None:
        """Makes values whole that are needed so, and those of the wanted ones that are partial."""
        available = [o for o in wanted if isinstance(o, int) and o in self._known]
        sums = [
            number
            for number in dict.fromkeys([*self._needed_whole, *available])
            if isinstance(self._known[number].layout, Partial)
        ]
        if sums:
            summed = self._division.summed([self._known[number] for number in sums])
            self._known.update(zip(sums, summed, strict=True))
        for number in self._needed_whole:
            if isinstance(self._known[number].layout, Split):
                self._known[number] = self._division.gathered(self._known[number])
        self._needed_whole.clear()

    def _apply(self, equation: Equation) -> list[Value] | None:
        operands = [self.value(operand) for operand in equation.operands]
        is_whole = all(value.layout == WHOLE for value in operands)
        if is_whole and equation.name not in _WITH_BODIES:
            arrays = self._division.bind(
                equation.primitive, equation.params, [value.array for value in operands]
            )
            return [Value(array, WHOLE) for array in arrays]
        if any(isinstance(value.layout, Partial) for value in operands):
            return self._apply_to_sums(equation, operands)
        rule = RULES.get(equation.name)
        results = GATHER_ALL if rule is None else rule(self._division, equation, operands)
        if isinstance(results, Gather):
            self._need(equation, results.positions or range(len(operands)))
            return None
        return results

    def _apply_to_sums(self, equation: Equation, operands: Sequence[Value]) -> list[Value] | None:
        layouts = {value.layout for value in operands}
        if self._keeps_sums and equation.name in _ADDITIONS and layouts == {WHOLE, PARTIAL}:
            operands = [self._division.addend(value) for value in operands]
        rule = SUM_RULES.get(equation.name)
        results = None if rule is None else rule(self._division, equation, operands)
        if results is None:
            partial = [i for i, v in enumerate(operands) if isinstance(v.layout, Partial)]
            self._need(equation, partial)
        return results

    def _need(self, equation: Equation, positions: Iterable[int]) -> None:
        for position in positions:
            operand = equation.operands[position]
            if isinstance(operand, int) and self._known[operand].layout != WHOLE:
                self._needed_whole[operand] = None
