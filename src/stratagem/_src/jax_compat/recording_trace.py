"""A trace for gradient tapes: it evaluates eagerly, and records how results depend on watched values.

``ad.LinearizeTrace`` is how ``jax.vjp`` differentiates: it computes each operation in the trace around it,
and stages the operation's derivative into a second, linear program. It wraps results in tracers that carry
both. Here the results stay plain arrays, and a table finds the derivative of an array by its identity. So
nothing that a block computes needs unwrapping when it leaves the block: it can be printed, compared, stored
and returned as if no derivative were recorded.

Everything here is private to JAX. ``available`` says whether this version of JAX has it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np

from stratagem._src.core.errors import UnsupportedError
from stratagem._src.core.owned_memory import owned
from stratagem._src.core.types import (
    ArraySpec,
    EquationParams,
    Jaxpr,
    Primitive,
    PyTree,
    Tensor,
    Trace,
    Tracer,
    WrappedFunction,
)
from stratagem._src.jax_compat.captured_values import (
    Captures,
    CaptureTrace,
    captured_by_rules,
    captured_in,
    watching,
)
from stratagem._src.jax_compat.primitives import COND, CUSTOM_JVP, JIT

__all__ = [
    "Record",
    "RecordingTrace",
    "alias_of",
    "available",
    "base_of",
    "current_trace",
    "is_recorded",
    "make_current",
]

try:
    from jax._src import ad_util, core, linear_util, source_info_util
    from jax._src.api_util import debug_info
    from jax._src.array import ArrayImpl
    from jax._src.interpreters import ad as ad_module
    from jax._src.interpreters import partial_eval as pe
    from jax._src.lax.lax import copy_p

    ad: Any = ad_module
    _LinearizeTrace: Any = ad.LinearizeTrace
    _needed = (
        ad.LinearizeTracer,
        ad.UndefinedPrimal,
        ad.Zero,
        ad.backward_pass,
        ad.p2tz,
        ad_util.add_jaxvals_p,
        core.ClosedJaxpr,
        core.Trace.process_custom_jvp_call,
        core.Trace.process_custom_vjp_call,
        core.TraceTag,
        core.eval_jaxpr,
        core.new_jaxpr_eqn,
        core.take_current_trace,
        core.trace_ctx.set_trace,
        linear_util.WrappedFun.wrap,
        pe.DynamicJaxprTrace.new_arg,
        pe.DynamicJaxprTrace.to_jaxpr,
        pe.DynamicJaxprTracer,
        pe.dce_jaxpr_consts,
        _LinearizeTrace.process_call,
        _LinearizeTrace.to_primal_tangent_pair,
    )
    _MISSING: str | None = None
except (ImportError, AttributeError) as error:  # pragma: no cover  (another version of JAX)
    _LinearizeTrace = object
    _MISSING = str(error)


_CAPTURED_BY_RULE = (
    "GradientTape cannot differentiate a function with a custom derivative ({kind}) with respect to a "
    "value that the function captures: its rule does not cover captured values. Pass the value as an "
    "argument, with a derivative in the rule, or capture jax.lax.stop_gradient of it."
)


def available() -> bool:
    """Returns whether this version of JAX has all private names that recording needs."""
    return _MISSING is None


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
    if _MISSING is not None:
        return False
    traces, trace = [], current_trace()
    while isinstance(trace, RecordingTrace):
        traces.append(trace)
        trace = trace.parent_trace
    return bool(traces) and any(trace.knows(value) for trace in traces for value in values)


class Record:
    """What was computed from watched values: a linear program, and its variables by array.

    The linear program maps tangents of watched values to tangents of results. The record keeps the values
    that it knows alive, so that their ``id`` stays unique.

    Raises:
        UnsupportedError: If this version of JAX lacks the private names that recording needs.
    """

    def __init__(self) -> None:
        if _MISSING is not None:
            raise UnsupportedError(
                "GradientTape needs internals of JAX that version "
                f"{jax.__version__} does not have ({_MISSING}). Install jax 0.10, or use "
                "stratagem.value_and_grad, which does not need them."
            )
        self._program = pe.DynamicJaxprTrace(_debug_info(), auto_dce=True)
        self._program.tag = core.TraceTag()
        self._entries: dict[int, tuple[Any, Any]] = {}
        self._taken: set[Any] = set()
        self._refused: set[Any] = set()
        self.paused = 0

    @property
    def program(self) -> Any:
        """The trace that the linear program is staged into."""
        return self._program

    def tangent(self, value: Tensor) -> Any | None:
        """Returns the tangent variable of ``value``, if the record knows it."""
        entry = self._entries.get(id(value))
        return None if entry is None else entry[1]

    def watch(self, value: Tensor) -> Any | None:
        """Makes ``value`` an input of the linear program; ``None`` if it cannot be differentiated."""
        known = self.tangent(value)
        if known is not None:
            return known
        tangent = self.new_input(value)
        if tangent is not None:
            self._entries[id(value)] = (value, tangent)
        return tangent

    def new_input(self, value: Tensor) -> Any | None:
        """Returns an input of the linear program for a value that is not added to the record."""
        if _has_no_tangent(value):
            return None
        aval = core.typeof(value).to_tangent_aval()
        tangent = self._program.new_arg(aval, source_info_util.current())
        self._taken.add(tangent.val)
        return tangent

    def note(self, value: Tensor, tangent: Tensor) -> None:
        """Records the tangent variable of ``value``, which the record does not know yet."""
        if tangent.val in self._taken:
            # An identity operation returned the tangent of its operand. The result needs a variable of its
            # own: its gradient is not that of the operand, which may have other uses.
            with core.set_current_trace(self._program):
                tangent = copy_p.bind(tangent)
        self._taken.add(tangent.val)
        self._entries[id(value)] = (value, tangent)

    def refuse(self, value: Tensor, reason: str) -> Any:
        """Returns an alias of ``value`` whose dependence on watched values is not recorded.

        Differentiating a result that is computed from it raises ``UnsupportedError`` with the reason.
        """
        if _has_no_tangent(value):
            return value
        value = alias_of(value)
        scalar = core.ShapedArray((), value.dtype)
        with core.set_current_trace(self._program):
            anchor = self._program.new_arg(scalar, source_info_util.current())
        self._refused.add(anchor.val)
        self._entries[id(value)] = (value, self._not_recorded(value, [anchor], reason))
        return value

    def refuse_of(self, value: Tensor, alias: Tensor, captured: Sequence[Any], reason: str) -> None:
        """Records ``alias`` for ``value``, without its dependence on ``captured``.

        Differentiating a result that is computed from it with respect to a value that ``captured`` depends
        on raises ``UnsupportedError`` with the reason; otherwise its derivative is that of ``value``.
        """
        known = self.tangent(value)
        tangent = self._not_recorded(alias, [self.tangent(each) for each in captured], reason)
        if known is not None:
            with core.set_current_trace(self._program):
                tangent = ad_util.add_jaxvals_p.bind(known, tangent)
        self._entries[id(alias)] = (alias, tangent)

    def _not_recorded(self, value: Tensor, anchors: Sequence[Any], reason: str) -> Any:
        aval = core.typeof(value).to_tangent_aval()
        with core.set_current_trace(self._program):
            return _refused().bind(*anchors, aval=aval, reason=reason)

    def equal(self, value: Tensor, other: Tensor) -> None:
        """Records that ``value`` is an alias of ``other``."""
        entry = self._entries.get(id(other))
        if entry is not None:
            self._entries[id(value)] = (value, entry[1])

    def pull_back(
        self, targets: Sequence[Any], cotangents: Sequence[Any], sources: Sequence[Any]
    ) -> list[Any | None]:
        """Returns the gradient with respect to each source; ``None`` for an unconnected source.

        Args:
            targets: Tangent variables, from ``tangent``.
            cotangents: An array for each target, of its shape and dtype.
            sources: Distinct tangent variables, from ``tangent``: inputs or intermediate values.
        """
        jaxpr, consts = self._program.to_jaxpr(
            list(targets), _debug_info().with_unknown_names(), source_info_util.current()
        )
        wanted = [source.val for source in sources]
        # Inputs of `refuse`: a path from a target to one of them must raise, so it must not be dropped.
        refused = [var for var in jaxpr.invars if var in self._refused]
        jaxpr, depends = _with_inputs(jaxpr, [*wanted, *refused], self._program)
        cotangents = [ct for ct, used in zip(cotangents, depends, strict=True) if used]
        jaxpr, used_consts, _ = pe.dce_jaxpr_consts(
            jaxpr,
            [True] * len(jaxpr.outvars),
            [False] * len(jaxpr.constvars) + [True] * len(jaxpr.invars),
        )
        consts = [const for const, used in zip(consts, used_consts, strict=True) if used]
        unknown = [ad.UndefinedPrimal(var.aval) for var in jaxpr.invars]
        results = ad.backward_pass(jaxpr, True, consts, unknown, cotangents)[: len(sources)]
        return [None if type(result) is ad.Zero else result for result in results]


def _has_no_tangent(value: Tensor) -> bool:
    return bool(core.typeof(value).to_tangent_aval().dtype == jax.dtypes.float0)


@functools.cache
def _refused() -> Any:
    """Returns a primitive of the linear program whose transpose raises the reason."""
    primitive = core.Primitive("not_recorded")

    def abstract_result(*anchors: Tensor, aval: ArraySpec, reason: str) -> Any:
        return aval

    def transposed(cotangent: Tensor, *anchors: Tensor, aval: ArraySpec, reason: str) -> Any:
        if type(cotangent) is ad.Zero:
            return [ad.Zero(a.aval) if ad.is_undefined_primal(a) else None for a in anchors]
        raise UnsupportedError(reason)

    primitive.def_abstract_eval(abstract_result)
    ad.primitive_transposes[primitive] = transposed
    return primitive


def _debug_info() -> Any:
    return debug_info("GradientTape", lambda: None, (), {})


def _with_inputs(jaxpr: Jaxpr, wanted: Sequence[Any], trace: Trace) -> tuple[Any, list[bool]]:
    """Returns a jaxpr whose first inputs are perturbations of the variables in ``wanted``.

    A new input is added to each variable that an equation defines: the gradient with respect to that input
    is the gradient with respect to the variable, and gradients still flow to what the variable depends on.
    Equations that depend on none of ``wanted`` are dropped, because nothing needs their derivatives.

    Returns:
        The jaxpr, with only the outputs that depend on ``wanted``; and whether each output does.
    """
    inputs = set(jaxpr.invars)
    change = {var: var if var in inputs else trace.frame.newvar(var.aval) for var in wanted}
    # The current variable for each variable that depends on `wanted`.
    now: dict[Any, Any] = {var: var for var in wanted if var in inputs}
    # Linear operands of kept equations that do not depend on `wanted`: inputs whose gradient is unused.
    idle: dict[Any, None] = {}
    # Variables that depend on any input of the linear program; others are residuals, plain arrays.
    linear = set(jaxpr.invars)
    eqns = []
    for eqn in jaxpr.eqns:
        operands = [v for v in eqn.invars if not isinstance(v, core.Literal)]
        if any(v in linear for v in operands):
            linear.update(eqn.outvars)
        live = [v for v in operands if v in now]
        outvars = [v for v in eqn.outvars if not isinstance(v, core.DropVar)]
        if not live and any(v in linear for v in operands):
            pass  # depends on inputs, but on none of `wanted`: dropped
        elif eqn.primitive is ad_util.add_jaxvals_p and len(live) == 1 and len(operands) == 2:
            # The other addend does not depend on `wanted`, so the sum is the live addend.
            now[outvars[0]] = now[live[0]]
        else:
            idle.update((v, None) for v in operands if v in linear and v not in now)
            invars = [v if isinstance(v, core.Literal) else now.get(v, v) for v in eqn.invars]
            eqns.append(eqn.replace(invars=invars))
            if live:
                now.update((v, v) for v in outvars)
        for var in outvars:
            if var in change:
                if var not in now:
                    now[var] = change[var]
                    continue
                total = trace.frame.newvar(var.aval)
                eqns.append(
                    core.new_jaxpr_eqn(
                        [now[var], change[var]],
                        [total],
                        ad_util.add_jaxvals_p,
                        {},
                        core.no_effects,
                        eqn.source_info,
                    )
                )
                now[var] = total
    depends = [var in now for var in jaxpr.outvars]
    made = jaxpr.replace(
        invars=[*(change[var] for var in wanted), *idle],
        outvars=[now[var] for var in jaxpr.outvars if var in now],
        eqns=eqns,
        debug_info=jaxpr.debug_info.with_unknown_names(),
    )
    return made, depends


class RecordingTrace(_LinearizeTrace):  # type: ignore[misc]
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
            if not _has_no_tangent(result):
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
        if primitive.name not in JIT or not isinstance(jaxpr, core.ClosedJaxpr):
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


def alias_of(value: Tensor, kind: Any = None) -> Any:
    """Returns another Python object for the same array, without a copy.

    Args:
        value: The array.
        kind: The class of the new object, a subclass of the class of a traced array.
    """
    if isinstance(value, ArrayImpl):
        return ArrayImpl(
            value.aval, value.sharding, value._arrays, committed=value._committed, _skip_checks=True
        )
    if not isinstance(value, core.Tracer):
        return value
    is_staged = isinstance(value, pe.DynamicJaxprTracer)
    if is_staged and value.val in value._trace.frame.constvar_to_val:
        # JAX drops a constant of a trace when the first tracer of it dies.
        with core.set_current_trace(base_of(current_trace())):
            return copy_p.bind(value)
    made = object.__new__(type(value) if kind is None else kind)
    for cls in type(value).__mro__:
        names = cls.__dict__.get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            if name != "__weakref__" and hasattr(value, name):
                setattr(made, name, getattr(value, name))
    return made
