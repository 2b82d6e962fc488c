"""The operation that computed a traced array, and the value of a constant one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stratagem._src.core.types import Tracer
from stratagem._src.jax_compat.primitives import axes_of

__all__ = ["Producer", "constant_value", "producer"]


@dataclass(frozen=True)
class Producer:
    """An operation in a trace that is not finished yet.

    Attributes:
        primitive: Name of the JAX primitive.
        params: Its parameters.
        operands: Its operands, traced arrays too.
        index: Which of its results the traced array is.
    """

    primitive: str
    params: Mapping[str, Any]
    operands: Sequence[Any]
    index: int

    @property
    def axes(self) -> tuple[Any, ...]:
        """The mesh axes that a collective runs over; empty for other operations."""
        return axes_of(self.params)


def producer(tracer: Tracer) -> Producer | None:
    """Returns the operation that computed a traced array.

    ``None`` for an argument or a constant, in a trace that records no operations, and if JAX has changed.

    Args:
        tracer: The traced array.
    """
    equation: Any = getattr(tracer, "parent", None)
    try:
        index = next(i for i, out in enumerate(equation.outvars) if out is tracer.val)
        return Producer(equation.primitive.name, equation.params, tuple(equation.in_tracers), index)
    except (AttributeError, StopIteration):
        return None


def constant_value(value: object) -> Any | None:
    """Returns the value of a literal, or of a traced array that is one; otherwise ``None``.

    Args:
        value: A traced array, or an operand of an equation in a jaxpr.
    """
    for literal in (value, getattr(value, "val", None)):
        if type(literal).__name__ == "Literal":
            return getattr(literal, "val", None)
    return None
