"""A trace for gradient tapes: it evaluates eagerly, and records how results depend on watched values.

``ad.LinearizeTrace`` is how ``jax.vjp`` differentiates: it computes each operation in the trace around it,
and stages the operation's derivative into a second, linear program. It wraps results in tracers that carry
both. Here the results stay plain arrays, and a table finds the derivative of an array by its identity. So
nothing that a block computes needs unwrapping when it leaves the block: it can be printed, compared, stored
and returned as if no derivative were recorded.

Everything here is private to JAX. ``available`` says whether this version of JAX has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from stratagem._src.core.errors import UnsupportedError
from stratagem._src.core.owned_memory import owned
from stratagem._src.core.types import (
    EquationParams,
    Jaxpr,
    Primitive,
    PyTree,
    Tensor,
    Trace,
    Tracer,
    WrappedFunction,
)
from stratagem._src.jax_compat import tape_internals
from stratagem._src.jax_compat.captured_values import (
    Captures,
    CaptureTrace,
    captured_by_rules,
    captured_in,
    watching,
)
from stratagem._src.jax_compat.primitives import COND, CUSTOM_JVP, JIT
from stratagem._src.jax_compat.tape_internals import LinearizeTrace, ad, core, pe
from stratagem._src.jax_compat.tape_record import Record, alias_of, has_no_tangent

__all__ = [
    "RecordingTrace",
    "available",
    "base_of",
    "current_trace",
    "is_recorded",
    "make_current",
]

_CAPTURED_BY_RULE = (
    "GradientTape cannot differentiate a function with a custom derivative ({kind}) with respect to a "
    "value that the function captures: its rule does not cover captured values. Pass the value as an "
    "argument, with a derivative in the rule, or capture jax.lax.stop_gradient of it."
)


def available() -> bool:
    """Returns whether this version of JAX has all private names that recording needs."""
    return tape_internals.MISSING is None


def current_trace() -> Any:
    """Returns the innermost trace, recording or not."""
    return core.trace_ctx.trace


def make_current(trace: Trace) -> None:
    """Makes ``trace`` this thread's innermost trace."""
    core.trace_ctx.set_trace(trace)


def base_of(trace: Trace) -> Any:
    """Returns the trace that computes, below all recording traces."""
    while isinstance(trace, (RecordingTrace, CaptureTrace)):
        trace = trace.parent_trace
    return trace


def is_recorded(values: Iterable[Any]) -> bool:
    """Returns whether an active recording trace knows one of ``values``."""
    if tape_internals.MISSING is not None:
        return False
    traces, trace = [], current_trace()
    while isinstance(trace, RecordingTrace):
        traces.append(trace)
        trace = trace.parent_trace
    return bool(traces) and any(trace.knows(value) for trace in traces for value in values)


class RecordingTrace(LinearizeTrace):  # type: ignore[misc]
    """Computes in the trace around it, and records derivatives.

    Args:
        record: The record of the derivatives.
        parent: The trace that computes.

    Attributes:
        sees_through: Tells ``jax_compat.tracing`` that ``parent_trace`` is what computes.
        open: Whether the block of the trace is still active.
    """

    sees_through = True

    def __init__(self, record: Record, parent: Trace) -> None:
        super().__init__(parent, record.program, True)
        self.record = record
        self.open = True

    def knows(self, value: Tensor) -> bool:
        """Returns whether the trace would record a result that is computed from ``value``."""
        return self._records() and self.record.tangent(value) is not None

    def _records(self) -> bool:
        return self.open and not self.record.paused

    def to_primal_tangent_pair(self, val: Tensor) -> tuple[Any, Any]:
        """Returns a value and its derivative, which is a symbolic zero if the record does not know it.

        A writable NumPy array is copied: the record uses it when a gradient is computed later.
        """
        if isinstance(val, np.ndarray):
            val = owned(val)
        tangent = self.record.tangent(val) if self._records() else None
        return (val, ad.p2tz(val)) if tangent is None else (val, tangent)

    def stage_value(self, val: Tensor) -> Any:
        """Returns ``val`` as an array of the trace that computes."""
        staged = self.parent_trace.stage_value(val)
        if staged is not val:
            self.record.equal(staged, val)
        return staged

    def process_primitive(
        self, primitive: Primitive, tracers: Sequence[Tracer], params: EquationParams, /
    ) -> Any:
        """Computes an operation, and records its derivative if it has one."""
        if self._records():
            # JAX would treat arrays that a jaxpr holds as constants, without derivatives. A jitted function
            # can be evaluated operation by operation instead.
            captured = captured_in(params)
            if captured and any(self.record.tangent(const) is not None for const in captured):
                return self._inline(primitive, tracers, params)
            known = [self.record.tangent(tracer) is not None for tracer in tracers]
            lost = [tracers[position] for position in captured_by_rules(params, known)]
            if lost and primitive.name in JIT:
                return self._inline(primitive, tracers, params)
            if lost and primitive.name == COND and isinstance(base_of(self), pe.DynamicJaxprTrace):
                # JAX would stage a program that cannot be compiled.
                raise UnsupportedError(_CAPTURED_BY_RULE.format(kind="jax.custom_jvp"))
            results = super().process_primitive(primitive, tracers, params)
            if lost:
                left = [self._left(result) for result in results]
                return self._without_captured(left, lost, "jax.custom_jvp")
        else:
            results = super().process_primitive(primitive, tracers, params)
        if primitive.multiple_results:
            return [self._left(result) for result in results]
        return self._left(results)

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
        captures = Captures(self.knows, self.alias)
        fun, jvp = watching(fun, captures), watching(jvp, captures)
        results = super().process_custom_jvp_call(primitive, fun, jvp, tracers, **params)
        left = [self._left(result) for result in results]
        return self._without_captured(left, captures.close(), "jax.custom_jvp")

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
        captures = Captures(self.knows, self.alias)
        fun, fwd = watching(fun, captures), watching(fwd, captures)
        results = super().process_custom_vjp_call(primitive, fun, fwd, bwd, tracers, **params)
        left = [self._left(result) for result in results]
        return self._without_captured(left, captures.close(), "jax.custom_vjp")

    def _without_captured(
        self, results: Sequence[Any], captured: list[Any], kind: str
    ) -> list[Any]:
        """Returns results whose derivatives with respect to captured values are unknown."""
        if not captured:
            return list(results)
        reason = _CAPTURED_BY_RULE.format(kind=kind)
        made = []
        for result in results:
            alias = result
            if not has_no_tangent(result):
                alias = self.alias(result)
                self.record.refuse_of(result, alias, captured, reason)
            made.append(alias)
        return made

    def process_call(self, *args: PyTree, **kwargs: Any) -> Any:
        """Computes a call of a function."""
        return [self._left(result) for result in super().process_call(*args, **kwargs)]

    def process_shard_map(self, *args: PyTree, **kwargs: Any) -> Any:
        """Computes a function on every device."""
        return super().process_shard_map(*args, **kwargs).map(self._left)

    def _left(self, result: Tensor) -> Any:
        """Returns a result as a plain array, and records its derivative."""
        if isinstance(result, ad.LinearizeTracer) and result._trace is self:
            value, tangent = result.primal, result.tangent
            if self.record.tangent(value) is not None:
                value = self.alias(value)
            self.record.note(value, tangent)
            return value
        if self.record.tangent(result) is not None:
            # The operation returned its operand without a derivative, as stop_gradient does. An alias keeps
            # the record from finding the derivative of the operand.
            return self.alias(result)
        return result

    def alias(self, value: Tensor) -> Any:
        """Returns an alias of an array that only the records around this one know."""
        made = alias_of(value)
        trace = self.parent_trace
        while isinstance(trace, RecordingTrace):
            trace.record.equal(made, value)
            trace = trace.parent_trace
        return made

    def _inline(
        self, primitive: Primitive, tracers: Sequence[Tracer], params: EquationParams
    ) -> Any:
        """Computes a compiled function that captures watched values, operation by operation."""
        jaxpr = params.get("jaxpr")
        if primitive.name not in JIT or jaxpr is None:
            raise UnsupportedError(
                f"GradientTape cannot differentiate {primitive.name} with respect to an array that the "
                "functions in it capture. Pass the array as an argument."
            )
        with core.set_current_trace(self):
            return self._evaluated(jaxpr.jaxpr, [*jaxpr.consts, *tracers])

    def _evaluated(self, jaxpr: Jaxpr, operands: Sequence[Any]) -> list[Any]:
        """Evaluates a jaxpr equation by equation under this trace."""
        env = dict(zip([*jaxpr.constvars, *jaxpr.invars], operands, strict=True))
        for eqn in jaxpr.eqns:
            given = [v for v in dict.fromkeys(eqn.invars) if not isinstance(v, core.Literal)]
            made = [v for v in eqn.outvars if not isinstance(v, core.DropVar)]
            one = jaxpr.replace(
                constvars=(),
                invars=given,
                outvars=made,
                eqns=[eqn],
                debug_info=jaxpr.debug_info.with_unknown_names(),
            )
            results = core.eval_jaxpr(one, (), *(env[v] for v in given))
            # Its first operands are captured values, which its rule does not cover.
            if eqn.primitive.name == CUSTOM_JVP:
                consts = [env.get(v) for v in eqn.invars[: eqn.params["num_consts"]]]
                lost = [const for const in consts if self.record.tangent(const) is not None]
                results = self._without_captured(results, lost, "jax.custom_jvp")
            env.update(zip(made, results, strict=True))
        return [v.val if isinstance(v, core.Literal) else env[v] for v in jaxpr.outvars]
