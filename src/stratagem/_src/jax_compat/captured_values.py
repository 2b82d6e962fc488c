"""Finds the arrays that a function with a custom derivative captures by closure.

JAX calls the function of a ``jax.custom_jvp`` or ``jax.custom_vjp`` in the trace around the one that
differentiates. Its arguments have derivatives there, but values that it captures have none: their
derivatives would be lost silently. ``watching`` calls such a function, and those inside of it, in a trace
that only inspects operands. ``captured_by_rules`` inspects the jaxprs of an operation that was traced
before.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from jax.dtypes import float0

from stratagem._src.core.types import (
    Equation,
    EquationParams,
    Jaxpr,
    Primitive,
    PyTree,
    Tensor,
    Trace,
    Tracer,
    WrappedFunction,
)
from stratagem._src.jax_compat.primitives import CUSTOM_JVP, STOP_GRADIENT, scan_counts
from stratagem._src.jax_compat.tracing import jax_core

__all__ = ["CaptureTrace", "Captures", "captured_by_rules", "captured_in", "watching"]

try:
    from jax._src import core

    _Trace: Any = core.Trace
except (ImportError, AttributeError):  # pragma: no cover  (another version of JAX)
    _Trace = object


class Captures:
    """The captured values that one call uses.

    Args:
        is_known: Whether the derivative of a value would be lost.
        alias: From a value to another object for the same array, for which ``is_known`` is false.
    """

    def __init__(self, is_known: Callable[[Any], bool], alias: Callable[[Any], Any]) -> None:
        # A jaxpr keeps the functions, and with them this object, alive much longer than the call.
        self._look: tuple[Callable[[Any], bool], Callable[[Any], Any]] | None = (is_known, alias)
        self._found: dict[int, Any] = {}

    def note(self, values: Tensor) -> None:
        """Records those of ``values`` whose derivatives would be lost."""
        if self._look is not None:
            is_known, _ = self._look
            self._found.update((id(value), value) for value in values if is_known(value))

    def given(self, value: Tensor) -> Any:
        """Returns an argument of the function as another object, so that it does not count as captured."""
        if self._look is None:
            return value
        is_known, alias = self._look
        return alias(value) if is_known(value) else value

    def close(self) -> list[Any]:
        """Returns the recorded values, and stops recording."""
        found = list(self._found.values())
        self._look, self._found = None, {}
        return found


def watching(function: WrappedFunction, captures: Captures, *, outermost: bool = True) -> Any:
    """Returns a ``WrappedFun`` of JAX that records what it captures."""
    return function.wrap(_call_watched, (captures, outermost), None)


def _call_watched(
    function: WrappedFunction, captures: Captures, outermost: bool, *args: PyTree
) -> Any:
    # Known values that reach an operation now are captured: arguments were replaced by aliases.
    if outermost:
        args = tuple(captures.given(arg) for arg in args)
    with (
        core.take_current_trace() as parent,
        core.set_current_trace(CaptureTrace(captures, parent)),
    ):
        results = function(*args)
    captures.note(_leaves(results))
    return results


def _leaves(results: PyTree) -> Iterator[Any]:
    for result in results:
        if isinstance(result, (list, tuple)):
            yield from _leaves(result)
        else:
            yield result


class CaptureTrace(_Trace):  # type: ignore[misc]
    """Computes in the trace around it, and records operands.

    Attributes:
        sees_through: Tells ``jax_compat.tracing`` that ``parent_trace`` is what computes.
    """

    sees_through = True

    def __init__(self, captures: Captures, parent: Trace) -> None:
        super().__init__()
        self.requires_low = False
        self.parent_trace = parent
        self._captures = captures

    def stage_value(self, val: Tensor) -> Any:
        """Returns ``val`` as an array of the trace that computes."""
        self._captures.note([val])
        return self.parent_trace.stage_value(val)

    def process_primitive(
        self, primitive: Primitive, tracers: Sequence[Tracer], params: EquationParams, /
    ) -> Any:
        """Computes an operation."""
        return self._bind(primitive, tracers, params)

    def process_call(
        self,
        primitive: Primitive,
        function: WrappedFunction,
        tracers: Sequence[Tracer],
        params: EquationParams,
        /,
    ) -> Any:
        """Computes a call of a function."""
        return self._bind(primitive, tracers, dict(params, subfuns=self._watched([function])))

    def process_custom_jvp_call(
        self,
        primitive: Primitive,
        fun: WrappedFunction,
        jvp: WrappedFunction,
        tracers: Sequence[Tracer],
        /,
        **params: Any,
    ) -> Any:
        """Computes a function with a custom JVP rule."""
        params["subfuns"] = self._watched([fun, jvp])
        return self._bind(primitive, tracers, params)

    def process_custom_vjp_call(
        self,
        primitive: Primitive,
        fun: WrappedFunction,
        fwd: WrappedFunction,
        bwd: WrappedFunction,
        tracers: Sequence[Tracer],
        /,
        **params: Any,
    ) -> Any:
        """Computes a function with a custom VJP rule."""
        params["subfuns"] = (*self._watched([fun, fwd]), bwd)
        return self._bind(primitive, tracers, params)

    def process_shard_map(
        self,
        primitive: Primitive,
        function: WrappedFunction,
        tracers: Sequence[Tracer],
        /,
        **params: Any,
    ) -> Any:
        """Computes a function on every device."""
        self._captures.note(tracers)
        return self.parent_trace.process_shard_map(primitive, function, tracers, **params)

    def _watched(self, functions: list[Any]) -> tuple[Any, ...]:
        return tuple(watching(each, self._captures, outermost=False) for each in functions)

    def _bind(self, primitive: Primitive, tracers: Sequence[Tracer], params: dict[str, Any]) -> Any:
        self._captures.note(tracers)
        self._captures.note(captured_in(params))
        avals = [core.typeof(tracer) for tracer in tracers]
        return primitive.bind_with_trace(self.parent_trace, tuple(tracers), avals, params)


_CAPTURED: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()


def captured_in(params: dict[str, Any]) -> list[Any]:
    """Returns the arrays that functions in an operation's parameters capture."""
    found: list[Any] = []
    for jaxpr in _jaxprs(params):
        known = _CAPTURED.get(jaxpr)
        if known is None:
            known = list(getattr(jaxpr, "consts", ()))
            for eqn in jaxpr.eqns:
                known.extend(captured_in(eqn.params))
            _CAPTURED[jaxpr] = known
        found.extend(known)
    return found


def _jaxprs(params: dict[str, Any]) -> Iterator[Any]:
    kinds = (jax_core().ClosedJaxpr, jax_core().Jaxpr)
    for param in params.values():
        if isinstance(param, kinds):
            yield param
        elif isinstance(param, (tuple, list)):
            yield from (p for p in param if isinstance(p, kinds))


def captured_by_rules(params: dict[str, Any], given: Sequence[bool]) -> list[int]:
    """Returns which operands of an operation reach a function with a ``jax.custom_jvp`` that captures them.

    JAX makes captured values the first operands of such a function, and drops their derivatives.

    Args:
        params: The parameters of the operation.
        given: Whether each operand has a derivative.
    """
    jaxprs = [getattr(jaxpr, "jaxpr", jaxpr) for jaxpr in _jaxprs(params)]
    if not any(_has_capturing_rule(jaxpr) for jaxpr in jaxprs):
        return []
    return [
        position
        for position, has_derivative in enumerate(given)
        if has_derivative
        and any(
            _reaches_rule(jaxpr, _inputs(jaxpr, params, position, len(given))) for jaxpr in jaxprs
        )
    ]


_HAS_RULE: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()


def _num_captured(eqn: Equation) -> int:
    return eqn.params["num_consts"] if eqn.primitive.name == CUSTOM_JVP else 0


def _has_capturing_rule(jaxpr: Jaxpr) -> bool:
    known = _HAS_RULE.get(jaxpr)
    if known is None:
        known = any(
            _num_captured(eqn)
            or any(_has_capturing_rule(getattr(j, "jaxpr", j)) for j in _jaxprs(eqn.params))
            for eqn in jaxpr.eqns
        )
        _HAS_RULE[jaxpr] = known
    return known


def _inputs(jaxpr: Jaxpr, params: dict[str, Any], position: int, num_operands: int) -> list[Any]:
    """Returns the inputs of an inner jaxpr that may depend on one operand of the operation."""
    num_inputs = len(jaxpr.invars)
    if "length" in params:
        first, carried = scan_counts(params)
        # Carried values depend on every operand from the second iteration on.
        return [jaxpr.invars[position], *jaxpr.invars[first : first + carried]]
    if "branches" in params:
        return [] if position == 0 else [jaxpr.invars[position - 1]]
    return [jaxpr.invars[position]] if num_inputs == num_operands else list(jaxpr.invars)


def _reaches_rule(jaxpr: Jaxpr, inputs: Sequence[Any]) -> bool:
    """Returns whether a function with a custom rule captures a value that depends on ``inputs``."""
    depends = set(inputs)
    for eqn in jaxpr.eqns:
        given = [not isinstance(v, core.Literal) and v in depends for v in eqn.invars]
        if not any(given) or eqn.primitive.name == STOP_GRADIENT:
            continue
        if any(given[: _num_captured(eqn)]) or captured_by_rules(eqn.params, given):
            return True
        depends.update(v for v in eqn.outvars if v.aval.to_tangent_aval().dtype != float0)
    return False
