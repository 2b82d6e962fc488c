"""``find_origin``: the known value that a traced array is a scaled, cast or clipped form of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stratagem._src.jax_compat.primitives import (
    DIV,
    MUL,
    NEG,
    REPLICATING_COLLECTIVES,
    SUMS,
    TRANSPOSE,
    UNSYNCHRONIZED_SOURCES,
)
from stratagem._src.jax_compat.tracer_producer import constant_value
from stratagem._src.jax_compat.tracing import is_tracer
from stratagem._src.jaxpr.traced_value import TRANSPARENT, TracedValue
from stratagem._src.mesh.replica_group import REPLICA_AXIS

__all__ = ["find_origin"]

_MAX_OPERATIONS = 2_000
_ONE_OPERAND = TRANSPARENT | {NEG, TRANSPOSE}
_CLIPPING = frozenset({"max", "min", "clamp", "select_n"})


def find_origin(
    value: object, known: Callable[[Any], Any | None]
) -> tuple[Any, tuple[float, ...]] | None:
    """Returns what ``known`` says of the array that ``value`` was computed from, and the divisors between.

    It follows casts, transpositions, clipping, and sums, products and quotients whose other operands are
    the same in all replicas: constants, and values computed from results of reductions over all replicas
    (such as the factor of ``clip_by_global_norm``). Everything else ends the search.

    Args:
        value: The array; ``None`` is returned if it is not traced.
        known: Called with each array of the trace on the way.
    """
    return _Search(known).find(TracedValue(value), ()) if is_tracer(value) else None


class _Search:
    def __init__(self, known: Callable[[Any], Any | None]) -> None:
        self._known = known
        self._replicated: dict[int, bool] = {}
        self._operations = 0

    def find(self, value: TracedValue, divisors: tuple[float, ...]) -> Any:
        value = value.outer()
        if value.jaxpr is None and (found := self._known(value.atom)) is not None:
            return found, divisors
        step = self._step(value)
        if step is None:
            return None
        name, operands = step
        if name in _ONE_OPERAND:
            return self.find(operands[0], divisors)
        if name == DIV:
            candidates = operands[:1]
        elif name in SUMS or name == "sub" or name == MUL or name in _CLIPPING:
            candidates = operands
        else:
            return None
        for candidate in candidates:
            others = [operand for operand in operands if operand is not candidate]
            passed = divisors + _divisors(name, others)
            found_there = self.find(candidate, passed)
            if found_there is not None:
                return found_there if all(map(self._is_replicated, others)) else None
        return None

    def _step(self, value: TracedValue) -> tuple[str, list[TracedValue]] | None:
        self._operations += 1
        if self._operations > _MAX_OPERATIONS:
            return None
        found = value.producer()
        return None if found is None else (found[0].primitive, found[1])

    def _is_replicated(self, value: TracedValue) -> bool:
        value = value.outer()
        if constant_value(value.atom) is not None:
            return True
        if value.jaxpr is not None:  # of a called jaxpr, whose operands differ from call to call
            return self._computes_replicated(value)
        if self._known(value.atom) is not None:
            return True
        key = id(value.atom)  # kept alive by the trace
        if key not in self._replicated:
            self._replicated[key] = False
            self._replicated[key] = self._computes_replicated(value)
        return self._replicated[key]

    def _computes_replicated(self, value: TracedValue) -> bool:
        self._operations += 1
        found = value.producer()
        if found is None or self._operations > _MAX_OPERATIONS:
            return False
        operation, operands = found
        if operation.primitive in UNSYNCHRONIZED_SOURCES:
            return False
        if REPLICA_AXIS in operation.axes:
            whole = operation.params.get("axis_index_groups") is None
            return whole and operation.primitive in REPLICATING_COLLECTIVES
        return bool(operands) and all(map(self._is_replicated, operands))


def _divisors(name: str, others: list[TracedValue]) -> tuple[float, ...]:
    numbers = [other.number for other in others]
    if name == DIV:
        return tuple(number for number in numbers if number)
    if name == MUL:
        return tuple(1 / number for number in numbers if number)
    return ()
