"""Constant folding during a trace: the value of a traced array that is computed from constants alone.

JAX stages ``jnp.repeat(3, 2)`` in a trace although all operands are known. Where a size is needed, it can
be computed now.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from stratagem._src.core.types import Tensor
from stratagem._src.jax_compat.compile_time_eval import evaluate_now
from stratagem._src.jax_compat.primitives import (
    ELEMENTWISE,
    IOTA,
    JIT,
    MOVES_ELEMENTS,
    PLAIN_REDUCTIONS,
)
from stratagem._src.jax_compat.tracing import is_tracer

__all__ = ["folded_value"]

# Sizes and shapes need few operations on few numbers: a longer search would compute data.
_MAX_OPERATIONS = 100
_MAX_ELEMENTS = 1 << 12
_PURE = frozenset({*ELEMENTWISE, *MOVES_ELEMENTS, *PLAIN_REDUCTIONS, IOTA})


def folded_value(value: Tensor) -> np.ndarray[Any, Any] | None:
    """Returns the value of an array, also of a traced one if it follows from constants; else ``None``."""
    try:
        return np.asarray(_Folding().value(value))
    except _NotConstant:
        return None


class _NotConstant(Exception):
    """An array depends on more than constants, or is too large to compute during a trace."""


class _Folding:
    def __init__(self) -> None:
        self._results: dict[int, Any] = {}
        self._num_left = _MAX_OPERATIONS

    def value(self, array: Tensor) -> Any:
        """Returns the value of an array.

        Raises:
            _NotConstant: If it has none.
        """
        if not is_tracer(array):
            return array
        # The private attributes of JAX's tracers; another JAX may not have them.
        constant = getattr(array, "full_lower", lambda: array)()
        if constant is not array:
            return self.value(constant)
        equation = getattr(array, "parent", None)
        try:
            index = [out is array.val for out in equation.outvars].index(True)  # type: ignore[union-attr]
        except (AttributeError, ValueError):
            raise _NotConstant from None
        if id(equation) not in self._results:
            self._results[id(equation)] = self._compute(equation)
        return self._results[id(equation)][index]

    def _compute(self, equation: Any) -> list[Any]:
        self._num_left -= 1
        sizes = [math.prod(getattr(out.aval, "shape", ())) for out in equation.outvars]
        if self._num_left < 0 or max(sizes, default=0) > _MAX_ELEMENTS or not _is_pure(equation):
            raise _NotConstant
        operands = [self.value(operand) for operand in equation.in_tracers]
        primitive, params = equation.primitive, equation.params
        found = evaluate_now(lambda: primitive.bind(*operands, **params))
        return list(found) if primitive.multiple_results else [found]


def _is_pure(equation: Any) -> bool:
    if equation.primitive.name in JIT:
        return all(map(_is_pure, equation.params["jaxpr"].jaxpr.eqns))
    return equation.primitive.name in _PURE and not equation.effects
