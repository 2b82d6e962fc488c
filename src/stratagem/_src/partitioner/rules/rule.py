"""What a rule is, and which operation has which."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from stratagem._src.partitioner.division import Division
from stratagem._src.partitioner.inlined_program import Equation
from stratagem._src.partitioner.layout import Split, Value

__all__ = ["GATHER_ALL", "RULES", "SUM_RULES", "Gather", "Rule", "first_split", "rule", "sum_rule"]


@dataclass(frozen=True, slots=True)
class Gather:
    """Says that an operation cannot be done unless operands are whole.

    Attributes:
        positions: Which operands; empty for all.
    """

    positions: tuple[int, ...] = ()


GATHER_ALL = Gather()

Rule: TypeAlias = Callable[[Division, Equation, Sequence[Value]], list[Value] | Gather]
"""Given operands that are whole or split, at least one of them split, returns the results."""

SumRule: TypeAlias = Callable[[Division, Equation, Sequence[Value]], list[Value] | None]
"""Given operands at least one of which is partial, returns the results; ``None`` if sums are needed."""

RULES: dict[str, Rule] = {}
SUM_RULES: dict[str, SumRule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Makes a function the rule of primitives."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


def sum_rule(*names: str) -> Callable[[SumRule], SumRule]:
    """Makes a function the rule of primitives for partial operands."""

    def register(function: SumRule) -> SumRule:
        SUM_RULES.update(dict.fromkeys(names, function))
        return function

    return register


def first_split(operands: Sequence[Value]) -> tuple[int, int]:
    """Returns the position of the first operand that is split, and its dimension."""
    for position, value in enumerate(operands):
        if isinstance(value.layout, Split):
            return position, value.layout.dim
    raise AssertionError("a rule is asked when an operand is split")
