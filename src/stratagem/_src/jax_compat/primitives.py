"""Names of JAX's primitives that other packages compare with, and of the parameters that hold their jaxprs.

JAX renames a primitive without notice, and a comparison with the former name then silently never holds:
``jax.checkpoint`` was ``remat``, ``remat2`` and ``checkpoint`` in turn. So names that changed stand here
with all of their forms, and a test traces each one (``tests/unit/jax_compat/test_primitives.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stratagem._src.core.types import Equation
from stratagem._src.jax_compat.tracing import jax_core

__all__ = [
    "ADDITIONS",
    "ALL_GATHER",
    "AXIS_INDEX",
    "BITCAST",
    "BROADCAST",
    "CALLBACKS",
    "CHANGED_NAMES",
    "CHECKPOINTS",
    "COND",
    "CONVERT_DTYPE",
    "CONVOLUTION",
    "CUSTOM_JVP",
    "DEBUG_CALLBACKS",
    "DIV",
    "DOT_GENERAL",
    "ELEMENTWISE",
    "FORMER_NAMES",
    "INTEGER_POWER",
    "IOTA",
    "JIT",
    "KEY_MAKERS",
    "MOVES_ELEMENTS",
    "MUL",
    "NEG",
    "OPTIMIZATION_BARRIER",
    "PICKS_ELEMENTS",
    "PLAIN_REDUCTIONS",
    "PMAX",
    "PMIN",
    "PPERMUTE",
    "PSUM",
    "RANDOM_BITS",
    "REDUCE_SCATTER",
    "REDUCE_SUM",
    "REPLICATING_COLLECTIVES",
    "RESHAPE",
    "SAME_ELEMENTS",
    "SCAN",
    "SCATTER",
    "SCATTER_POOLING",
    "SHARDING_CONSTRAINT",
    "SHARDING_PRIMITIVES",
    "SHARD_MAP",
    "STOP_GRADIENT",
    "SUMS",
    "TRANSPOSE",
    "UNSYNCHRONIZED_SOURCES",
    "VALUE_CALLBACKS",
    "WHILE",
    "axes_of",
    "called_jaxpr",
    "calls_host",
    "collective_axes",
    "is_dropped",
    "scan_counts",
]

# Calls, and functions with rules of their own.
JIT = frozenset({"jit", "pjit"})
CUSTOM_JVP = "custom_jvp_call"
CHECKPOINTS = frozenset({"remat2", "remat", "checkpoint"})
"""``jax.checkpoint``: a call whose results are computed again in the backward pass."""

_CALLED_JAXPRS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "eval_jaxpr": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
}

# Control flow.
COND, SCAN, WHILE = "cond", "scan", "while"

# Collectives, and what else knows of mesh axes.
AXIS_INDEX = "axis_index"
PSUM, PMAX, PMIN = "psum", "pmax", "pmin"
ALL_GATHER, PPERMUTE, REDUCE_SCATTER = "all_gather", "ppermute", "reduce_scatter"
REPLICATING_COLLECTIVES = frozenset(
    {PSUM, "psum_invariant", PMAX, PMIN, ALL_GATHER, "all_gather_invariant"}
)
"""Collectives whose result is the same on all devices."""
SHARD_MAP = "shard_map"
SHARDING_CONSTRAINT = "sharding_constraint"
SHARDING_PRIMITIVES = frozenset({SHARDING_CONSTRAINT, "reshard", "mesh_cast"})
"""Primitives that change where a value is, and nothing else."""

# Host callbacks.
VALUE_CALLBACKS = frozenset({"pure_callback", "io_callback"})
DEBUG_CALLBACKS = frozenset({"debug_callback", "debug_print"})
CALLBACKS = VALUE_CALLBACKS | DEBUG_CALLBACKS

# Random numbers.
RANDOM_BITS = "random_bits"
KEY_MAKERS = frozenset({"random_seed", "random_wrap"})
"""Make PRNG keys of the default implementation: from seeds, and from arrays of key data."""
UNSYNCHRONIZED_SOURCES = frozenset({AXIS_INDEX, "rng_uniform"})
"""Differ between devices although their operands do not."""

# Arithmetic and data movement.
SUMS = frozenset({"add", "add_any"})
ADDITIONS = SUMS | {"sub"}
DIV, MUL, NEG, INTEGER_POWER = "div", "mul", "neg", "integer_pow"
DOT_GENERAL, CONVOLUTION = "dot_general", "conv_general_dilated"
TRANSPOSE, REDUCE_SUM = "transpose", "reduce_sum"
BROADCAST, RESHAPE = "broadcast_in_dim", "reshape"
PLAIN_REDUCTIONS = frozenset({REDUCE_SUM, "reduce_max", "reduce_min"})
"""Reductions over ``axes`` whose results do not depend on how they are divided, but for rounding."""
SCATTER, SCATTER_POOLING = "scatter", "select_and_scatter_add"
BITCAST, CONVERT_DTYPE = "bitcast_convert_type", "convert_element_type"
IOTA = "iota"
MOVES_ELEMENTS = frozenset(
    """
    argmax argmin broadcast_in_dim concatenate copy cumsum dynamic_slice dynamic_update_slice gather pad
    reduce_prod reshape rev scatter scatter-add select_n slice sort split squeeze stack transpose
    """.split()  # noqa: SIM905
)
"""They depend on their operands alone, and are no elementwise functions of them."""
STOP_GRADIENT = "stop_gradient"
OPTIMIZATION_BARRIER = "optimization_barrier"
SAME_ELEMENTS = frozenset({BROADCAST, CONVERT_DTYPE, "copy", RESHAPE, "squeeze"})
"""Each element of the result is one of the operand, of another dtype perhaps."""
PICKS_ELEMENTS = SAME_ELEMENTS | {TRANSPOSE, "rev", "slice", "dynamic_slice"}
"""Each element of the result is one of the operand, of another dtype perhaps, at any place."""
ELEMENTWISE = tuple(
    """
    abs acos acosh add add_any and asin asinh atan atan2 atanh bessel_i0e bessel_i1e
    bitcast_convert_type cbrt ceil clamp clz complex conj convert_element_type copy copy_p cos cosh
    digamma div eq eq_to erf erf_inv erfc exp exp2 expm1 floor ge gt igamma igammac imag integer_pow
    is_finite le le_to lgamma log log1p log2 logistic lt lt_to max min mul ne neg nextafter not
    one_minus_square optimization_barrier or polygamma population_count pow real reduce_precision
    regularized_incomplete_beta rem round rsqrt select_n shift_left shift_right_arithmetic
    shift_right_logical sign sin sinh sqrt square stop_gradient sub tan tanh xor zeta
    """.split()  # noqa: SIM905
)
"""Each element of the result is computed from the elements at its place."""

FORMER_NAMES = frozenset(
    {"checkpoint", "copy_p", "core_call", "expand_dims", "mesh_cast", "pjit", "remat"}
)
"""Names in this file and in tables of rules that the oldest supported JAX does not have any more."""

CHANGED_NAMES = frozenset({"closed_call", "eval_jaxpr", "log2", "one_minus_square"})
"""Names that some of the supported versions have: JAX 0.10 the first, later ones the others."""


def called_jaxpr(eqn: Equation) -> Any | None:
    """Returns the closed jaxpr that an equation calls once with its operands; ``None`` if it is no call."""
    param = _CALLED_JAXPRS.get(eqn.primitive.name)
    if param is None:
        return None
    called = eqn.params[param]
    is_closed = isinstance(called, jax_core().ClosedJaxpr)
    return called if is_closed else jax_core().ClosedJaxpr(called, ())


def scan_counts(params: Mapping[str, Any]) -> tuple[int, int]:
    """Returns how many operands of a ``lax.scan`` are constants, and how many are carried."""
    if "num_carry" in params:  # until JAX 0.10
        return params["num_consts"], params["num_carry"]
    consts, carried, _ = params["ft_in"].unpack()
    return len(consts), len(carried)


def collective_axes(eqn: Equation) -> tuple[Any, ...]:
    """Returns the mesh axes that a collective runs over; empty for other equations.

    ``psum`` and its relatives have a tuple of ``axes``, other collectives one or several in ``axis_name``.
    """
    return axes_of(eqn.params)


def axes_of(params: Mapping[str, Any]) -> tuple[Any, ...]:
    """Returns the mesh axes in the parameters of an equation."""
    axes = params.get("axes", params.get("axis_name", ()))
    return axes if isinstance(axes, tuple) else (axes,)


def calls_host(eqn: Equation) -> bool:
    """Returns whether an equation calls a Python function, of this library or another one too."""
    return "callback" in eqn.primitive.name or eqn.primitive.name in CALLBACKS


def is_dropped(var: Any) -> bool:
    """Returns whether a result of an equation is not used: JAX keeps a ``DropVar`` in its place."""
    return type(var).__name__ == "DropVar"
