"""Random numbers for the rows of a batch, such as the mask of a dropout: each replica makes its own.

Every replica could make all of them, and does where they are needed whole. So they wait, with what is
computed of nothing else but them and whole values, until an operation on rows asks for them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from stratagem._src.mesh.replica_group import REPLICA_AXIS
from stratagem._src.partitioner.division import Division
from stratagem._src.partitioner.inlined_program import Constant, Equation
from stratagem._src.partitioner.layout import WHOLE, Partial, Split, Value
from stratagem._src.partitioner.rules.elementwise import elementwise
from stratagem._src.partitioner.rules.rule import RULES
from stratagem._src.partitioner.threefry import random_words

__all__ = ["RandomDraws"]

_UNSIGNED = {8: jnp.uint8, 16: jnp.uint16, 32: jnp.uint32}


class RandomDraws:
    """What has been drawn in a program, and waits until it is known which of it a replica needs.

    Args:
        division: The replicas.
        known: The values of the program that do not wait, by their numbers.
    """

    def __init__(self, division: Division, known: dict[int, Value]) -> None:
        self._division = division
        self._known = known
        self._waiting: dict[int, Equation] = {}
        self._blocks: dict[int, Value] = {}

    def __contains__(self, number: int) -> bool:
        return number in self._waiting

    def take(self, equation: Equation) -> bool:
        """Returns whether the results of an equation, whose operands are there, are to wait."""
        if not self._can_wait(equation):
            return False
        self._waiting[equation.results[0]] = equation
        return True

    def _can_wait(self, equation: Equation) -> bool:
        others = [self._value(o) for o in equation.operands if o not in self._waiting]
        if any(value.layout != WHOLE for value in others):
            return False
        if equation.name == "random_bits":
            return self._can_draw_rows(equation, others[0].array)
        return _is_elementwise(equation) and len(others) < len(equation.operands)

    def _can_draw_rows(self, equation: Equation, key: Any) -> bool:
        shape = equation.shapes[0]
        return (
            len(shape) > 0
            and self._division.can_split(shape[0])
            and 0 < math.prod(shape) < 1 << 32
            and equation.params["bit_width"] in _UNSIGNED
            and key.shape == ()
            and jax.random.key_impl(key) == "threefry2x32"
            and _is_partitionable()
        )

    def operands(self, equation: Equation) -> list[Value]:
        """Returns the operands of an equation; of those that wait, what it needs of them."""
        others = [self._value(o) for o in equation.operands if o not in self._waiting]
        by_rows = _is_elementwise(equation) and _are_rows(others, len(equation.shapes[0]))
        return [self._operand(o, equation, by_rows=by_rows) for o in equation.operands]

    def _operand(self, operand: int | Constant, equation: Equation, *, by_rows: bool) -> Value:
        if not isinstance(operand, int) or operand not in self._waiting:
            return self._value(operand)
        if by_rows and self._waiting[operand].shapes[0][:1] == equation.shapes[0][:1]:
            return self._block(operand)
        return self.whole(operand)

    def _value(self, operand: int | Constant) -> Value:
        return (
            Value(operand.value, WHOLE) if isinstance(operand, Constant) else self._known[operand]
        )

    def whole(self, number: int) -> Value:
        """Returns all of a value that waits, which does so no more."""
        if number in self._waiting:
            equation = self._waiting[number]
            operands = [
                self.whole(o) if o in self._waiting else self._value(o) for o in equation.operands
            ]
            arrays = [value.array for value in operands]
            [array] = self._division.bind(equation.primitive, equation.params, arrays)
            self._known[number] = Value(array, WHOLE)
            del self._waiting[number]
        return self._known[number]

    def _block(self, number: int) -> Value:
        """Returns this replica's rows of a value that waits."""
        if number not in self._blocks:
            equation = self._waiting[number]
            if equation.name == "random_bits":
                self._blocks[number] = self._own_rows(equation)
            else:
                operands = [self._operand(o, equation, by_rows=True) for o in equation.operands]
                if not any(isinstance(value.layout, Split) for value in operands):
                    return self._division.block(self.whole(number), 0)
                results = elementwise(self._division, equation, operands)
                assert isinstance(results, list)
                [self._blocks[number]] = results
        return self._blocks[number]

    def _own_rows(self, equation: Equation) -> Value:
        """Draws the bits that ``jax.random.bits`` gives these rows, in its partitionable form."""
        width, shape = equation.params["bit_width"], equation.shapes[0]
        local = self._division.local_shape(shape, 0)
        start = jax.lax.axis_index(REPLICA_AXIS).astype(jnp.uint32) * math.prod(local)
        key = jax.random.key_data(self._value(equation.operands[0]).array)
        words = random_words(key, start, math.prod(local)).reshape(local)
        return Value(words.astype(_UNSIGNED[width]), Split(0))


def _is_partitionable() -> bool:
    """Returns whether each random number depends on the key and its place only."""
    config: Any = jax.config
    return bool(config.jax_threefry_partitionable)


def _is_elementwise(equation: Equation) -> bool:
    return RULES.get(equation.name) is elementwise and len(equation.results) == 1


def _are_rows(operands: Sequence[Value], rank: int) -> bool:
    """Returns whether operands of an elementwise operation make it one on rows."""
    if any(isinstance(value.layout, Partial) for value in operands):
        return False
    split = [value for value in operands if isinstance(value.layout, Split)]
    return bool(split) and all(v.layout == Split(0) and v.array.ndim == rank for v in split)
