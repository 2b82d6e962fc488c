"""The private names of JAX that gradient tapes need. ``MISSING`` says what this version of JAX lacks."""

from __future__ import annotations

from typing import Any

__all__ = [
    "MISSING",
    "ArrayImpl",
    "LinearizeTrace",
    "ad",
    "ad_util",
    "copy_p",
    "core",
    "debug_info",
    "pe",
    "source_info_util",
]

ArrayImpl: Any = None
LinearizeTrace: Any = object
ad: Any = None
ad_util: Any = None
copy_p: Any = None
core: Any = None
debug_info: Any = None
pe: Any = None
source_info_util: Any = None
MISSING: str | None = None

try:
    from jax._src import ad_util, core, linear_util, source_info_util
    from jax._src.api_util import debug_info
    from jax._src.array import ArrayImpl
    from jax._src.interpreters import ad
    from jax._src.interpreters import partial_eval as pe
    from jax._src.lax.lax import copy_p

    LinearizeTrace = ad.LinearizeTrace
    _needed = (
        ad.LinearizeTracer,
        ad.UndefinedPrimal,
        ad.Zero,
        ad.backward_pass,
        ad.p2tz,
        ad_util.add_jaxvals_p,
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
        LinearizeTrace.to_primal_tangent_pair,
    )
except (ImportError, AttributeError) as error:  # pragma: no cover  (another version of JAX)
    MISSING = str(error)
