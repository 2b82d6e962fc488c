"""``Record``: what a gradient tape knows of the values that were computed from watched ones.

The values stay plain arrays. The record finds the derivative of an array by its identity, so two results
that depend on watched values in different ways must be two objects: ``alias_of`` makes another one of an
array, without a copy.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax

from stratagem._src.core.errors import UnsupportedError
from stratagem._src.core.types import ArraySpec, Jaxpr, Tensor, Trace
from stratagem._src.jax_compat import tape_internals
from stratagem._src.jax_compat.tape_internals import (
    ArrayImpl,
    ad,
    ad_util,
    copy_p,
    core,
    debug_info,
    pe,
    source_info_util,
)
from stratagem._src.jax_compat.tracing import active_trace

__all__ = ["Record", "alias_of", "has_no_tangent"]


class Record:
    """What was computed from watched values: a linear program, and its variables by array.

    The linear program maps tangents of watched values to tangents of results. The record keeps the values
    that it knows alive, so that their ``id`` stays unique.

    Raises:
        UnsupportedError: If this version of JAX lacks the private names that recording needs.
    """

    def __init__(self) -> None:
        if tape_internals.MISSING is not None:
            raise UnsupportedError(
                "GradientTape needs internals of JAX that version "
                f"{jax.__version__} does not have ({tape_internals.MISSING}). Install jax 0.10 to 0.12, or "
                "use stratagem.value_and_grad, which does not need them."
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
        if has_no_tangent(value):
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
        if has_no_tangent(value):
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
        if hasattr(jaxpr, "with_consts"):  # since JAX 0.11: otherwise the constants are inputs
            jaxpr = jaxpr.with_consts(consts)
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


def has_no_tangent(value: Tensor) -> bool:
    """Returns whether a value has no derivatives, such as an array of integers."""
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
        with core.set_current_trace(active_trace()):
            return copy_p.bind(value)
    made = object.__new__(type(value) if kind is None else kind)
    for cls in type(value).__mro__:
        names = cls.__dict__.get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            if name != "__weakref__" and hasattr(value, name):
                setattr(made, name, getattr(value, name))
    return made
