"""``TracedValue``: a traced array that can be followed back to the operations that computed it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stratagem._src.jax_compat.tracer_producer import Producer, constant_value, producer

__all__ = ["TRANSPARENT", "TracedValue"]

TRANSPARENT = frozenset(
    {"convert_element_type", "copy", "copy_p", "reshape", "squeeze", "stop_gradient"}
)
"""Operations that change neither the elements of an array nor their meaning."""

# The names under which call-like operations keep the jaxpr that they run.
_INNER_JAXPRS = ("jaxpr", "call_jaxpr", "fun_jaxpr")


@dataclass(frozen=True)
class TracedValue:
    """A traced array; or a variable of a jaxpr that an operation calls, with the operation's operands."""

    atom: Any
    jaxpr: Any = None
    operands: tuple[TracedValue, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(getattr(self.atom.aval, "shape", ()))

    @property
    def number(self) -> float | None:
        """The value of a scalar that is a constant."""
        value = constant_value(self.atom)
        return float(value) if value is not None and getattr(value, "ndim", 0) == 0 else None

    def outer(self) -> TracedValue:
        """Returns the operand, if the value is an input of a called jaxpr; otherwise the value itself."""
        if self.jaxpr is not None:
            for given, operand in zip(self.jaxpr.invars, self.operands, strict=True):
                if self.atom is given:
                    return operand.outer()
        return self

    def producer(self) -> tuple[Producer, list[TracedValue]] | None:
        """Returns the operation that computes it, with its operands as values.

        Calls are entered: the operation is one of the called jaxpr.
        """
        value = self.outer()
        atom, jaxpr = value.atom, value.jaxpr
        found = producer(atom) if jaxpr is None else _equation_of(atom, jaxpr)
        if found is None:
            return None
        operands = [TracedValue(atom, value.jaxpr, value.operands) for atom in found.operands]
        for name in _INNER_JAXPRS:
            inner: Any = getattr(found.params.get(name), "jaxpr", found.params.get(name))
            if hasattr(inner, "eqns") and len(inner.invars) == len(operands):
                result = inner.outvars[found.index]
                return TracedValue(result, inner, tuple(operands)).producer()
        return found, operands


def _equation_of(atom: object, jaxpr: Any) -> Producer | None:
    for equation in jaxpr.eqns:
        for index, out in enumerate(equation.outvars):
            if out is atom:
                return Producer(
                    equation.primitive.name, equation.params, tuple(equation.invars), index
                )
    return None
