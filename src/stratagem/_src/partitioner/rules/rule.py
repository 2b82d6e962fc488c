"""The registry of partitioning rules, by primitive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from stratagem._src.jaxpr.inline import FlatEquation
from stratagem._src.partitioner.layout import Sharded, Value
from stratagem._src.partitioner.sharding_context import ShardingContext

__all__ = [
    "GATHER_ALL",
    "PARTIAL_RULES",
    "RULES",
    "Gather",
    "Rule",
    "first_sharded",
    "partial_rule",
    "rule",
]


@dataclass(frozen=True, slots=True)
class Gather:
    """A rule's answer that it cannot apply unless some operands are replicated.

    Attributes:
        positions: The positions of these operands; empty for all.
    """

    positions: tuple[int, ...] = ()


GATHER_ALL = Gather()

Rule: TypeAlias = Callable[[ShardingContext, FlatEquation, Sequence[Value]], list[Value] | Gather]
"""Returns the results for operands that are replicated or sharded, at least one of them sharded."""

PartialRule: TypeAlias = Callable[
    [ShardingContext, FlatEquation, Sequence[Value]], list[Value] | None
]
"""Returns the results for operands at least one of which is partial; ``None`` if it needs their sums."""

RULES: dict[str, Rule] = {}
PARTIAL_RULES: dict[str, PartialRule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Registers a function as the rule of primitives."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


def partial_rule(*names: str) -> Callable[[PartialRule], PartialRule]:
    """Registers a function as the rule of primitives for partial operands."""

    def register(function: PartialRule) -> PartialRule:
        PARTIAL_RULES.update(dict.fromkeys(names, function))
        return function

    return register


def first_sharded(operands: Sequence[Value]) -> tuple[int, int]:
    """Returns the position of the first sharded operand, and its sharded dimension."""
    for position, value in enumerate(operands):
        if isinstance(value.layout, Sharded):
            return position, value.layout.dim
    raise AssertionError("rules are called with at least one sharded operand")
