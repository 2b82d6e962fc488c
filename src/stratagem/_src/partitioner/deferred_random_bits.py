"""Defers random bits for the rows of a batch, such as a dropout mask: each replica draws its own rows.

Every replica can draw all of them, and does so where they are needed replicated. So random bits, and
elementwise results of nothing but them and replicated values, are deferred until an operation uses them:
an elementwise operation on sharded rows then draws only the rows of its shard.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.jax_compat.primitives import RANDOM_BITS
from stratagem._src.jaxpr.inline import Constant, FlatEquation, Operand
from stratagem._src.mesh.replica_group import REPLICA_AXIS
from stratagem._src.partitioner.layout import REPLICATED, Partial, Sharded, Value
from stratagem._src.partitioner.rules.elementwise import elementwise
from stratagem._src.partitioner.rules.rule import RULES
from stratagem._src.partitioner.sharding_context import ShardingContext

__all__ = ["DeferredRandomBits", "random_words"]

# Threefry-2x32, 20 rounds: J. Salmon and others, "Parallel random numbers: as easy as 1, 2, 3", 2011.
_DISTANCES = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)

_UNSIGNED = {8: jnp.uint8, 16: jnp.uint16, 32: jnp.uint32}


class DeferredRandomBits:
    """The random bits of a program whose evaluation is deferred until their layout is known.

    Args:
        ctx: The replicas.
        known: The values of the program that are already evaluated, by number.
    """

    def __init__(self, ctx: ShardingContext, known: dict[int, Value]) -> None:
        self._ctx = ctx
        self._known = known
        self._deferred: dict[int, FlatEquation] = {}
        self._shards: dict[int, Value] = {}

    def __contains__(self, number: int) -> bool:
        return number in self._deferred

    def defer(self, equation: FlatEquation) -> bool:
        """Defers an equation if possible, and returns whether it did. Its operands are available."""
        if not self._can_defer(equation):
            return False
        self._deferred[equation.results[0]] = equation
        return True

    def _can_defer(self, equation: FlatEquation) -> bool:
        others = [self._value(o) for o in equation.operands if o not in self._deferred]
        if any(value.layout != REPLICATED for value in others):
            return False
        if equation.name == RANDOM_BITS:
            return self._can_draw_rows(equation, others[0].array)
        return _is_elementwise(equation) and len(others) < len(equation.operands)

    def _can_draw_rows(self, equation: FlatEquation, key: Any) -> bool:
        shape = equation.shapes[0]
        return (
            len(shape) > 0
            and self._ctx.can_shard(shape[0])
            # `random_words` counts elements in 32 bits.
            and 0 < math.prod(shape) < 1 << 32
            and equation.params["bit_width"] in _UNSIGNED
            and key.shape == ()
            and jax.random.key_impl(key) == "threefry2x32"
            and _is_partitionable()
        )

    def operands(self, equation: FlatEquation) -> list[Value]:
        """Returns the operands of an equation; of deferred ones the rows or the full value it needs."""
        others = [self._value(o) for o in equation.operands if o not in self._deferred]
        by_rows = _is_elementwise(equation) and _are_rows(others, len(equation.shapes[0]))
        return [self._operand(o, equation, by_rows=by_rows) for o in equation.operands]

    def _operand(self, operand: Operand, equation: FlatEquation, *, by_rows: bool) -> Value:
        if not isinstance(operand, int) or operand not in self._deferred:
            return self._value(operand)
        if by_rows and self._deferred[operand].shapes[0][:1] == equation.shapes[0][:1]:
            return self._shard(operand)
        return self.replicated(operand)

    def _value(self, operand: Operand) -> Value:
        return (
            Value(operand.value, REPLICATED)
            if isinstance(operand, Constant)
            else self._known[operand]
        )

    def replicated(self, number: int) -> Value:
        """Returns a deferred value replicated. It is not deferred any more."""
        if number in self._deferred:
            equation = self._deferred[number]
            operands = [
                self.replicated(o) if o in self._deferred else self._value(o)
                for o in equation.operands
            ]
            arrays = [value.array for value in operands]
            [array] = self._ctx.bind(equation.primitive, equation.params, arrays)
            self._known[number] = Value(array, REPLICATED)
            del self._deferred[number]
        return self._known[number]

    def _shard(self, number: int) -> Value:
        """Returns this replica's rows of a deferred value."""
        if number not in self._shards:
            equation = self._deferred[number]
            if equation.name == RANDOM_BITS:
                self._shards[number] = self._own_rows(equation)
            else:
                operands = [self._operand(o, equation, by_rows=True) for o in equation.operands]
                if not any(isinstance(value.layout, Sharded) for value in operands):
                    return self._ctx.shard(self.replicated(number), 0)
                results = elementwise(self._ctx, equation, operands)
                assert isinstance(results, list)
                [self._shards[number]] = results
        return self._shards[number]

    def _own_rows(self, equation: FlatEquation) -> Value:
        """Draws the bits that partitionable ``jax.random.bits`` returns for the rows of this replica."""
        width, shape = equation.params["bit_width"], equation.shapes[0]
        local = self._ctx.local_shape(shape, 0)
        start = jax.lax.axis_index(REPLICA_AXIS).astype(jnp.uint32) * math.prod(local)
        key = jax.random.key_data(self._value(equation.operands[0]).array)
        words = random_words(key, start, math.prod(local)).reshape(local)
        return Value(words.astype(_UNSIGNED[width]), Sharded(0))


def _is_partitionable() -> bool:
    """Returns whether each random number depends on the key and its index alone."""
    config: Any = jax.config
    return bool(config.jax_threefry_partitionable)


def _is_elementwise(equation: FlatEquation) -> bool:
    return RULES.get(equation.name) is elementwise and len(equation.results) == 1


def _are_rows(operands: Sequence[Value], rank: int) -> bool:
    """Returns whether an elementwise operation with these operands works on sharded rows."""
    if any(isinstance(value.layout, Partial) for value in operands):
        return False
    sharded = [value for value in operands if isinstance(value.layout, Sharded)]
    return bool(sharded) and all(v.layout == Sharded(0) and v.array.ndim == rank for v in sharded)


def random_words(key: jax.Array, start: jax.Array, num_words: int) -> jax.Array:
    """Returns the random words of ``num_words`` elements, beginning with element ``start``.

    They are those of partitionable ``jax.random``: the hash of each element's index. On CPU JAX runs its
    own implementation as a loop of small steps; for the rows of one replica the loop costs more than the
    arithmetic.

    Args:
        key: The two words of a key, ``uint32`` like all words here.
        start: The index of the first element.
        num_words: The number of elements.
    """
    # A scan of two steps: XLA would recompute a single expression for each of its uses.
    half = -(-num_words // 2)

    def step(first: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
        numbers = jax.lax.iota(jnp.uint32, half) + first
        high, low = _hash(key, jnp.zeros_like(numbers), numbers)
        return first + np.uint32(half), high ^ low

    _, words = jax.lax.scan(step, start, length=2)
    return words.reshape(-1)[:num_words]


def _hash(key: jax.Array, high: jax.Array, low: jax.Array) -> tuple[jax.Array, jax.Array]:
    keys = (key[0], key[1], key[0] ^ key[1] ^ _PARITY)
    high, low = high + keys[0], low + keys[1]
    for block in range(1, 6):
        for distance in _DISTANCES[1 - block % 2]:
            high = high + low
            low = high ^ _rotated(low, distance)
        high = high + keys[block % 3]
        low = low + keys[(block + 1) % 3] + np.uint32(block)
    return high, low


def _rotated(words: jax.Array, distance: int) -> jax.Array:
    return (words << np.uint32(distance)) | (words >> np.uint32(32 - distance))
