"""Finds traced functions whose results are bit-identical however XLA compiles them.

Data movement, integer arithmetic, and the floating point operations that IEEE 754 defines to the last bit
are. Sums of floats depend on the order of addition, and ``exp`` and similar functions on the vector width.
NumPy and XLA also disagree on out-of-range values, for example of indices. A function that uses any of
these is called per element.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from stratagem._src.core.types import Equation, Jaxpr
from stratagem._src.jax_compat.primitives import (
    ADDITIONS,
    CONVERT_DTYPE,
    DIV,
    INTEGER_POWER,
    JIT,
)
from stratagem._src.jaxpr.walk import inner_jaxprs

__all__ = ["exact_compiler_options"]

# Algebraic simplification turns x / c into x * (1 / c).
_FUSED = {"xla_disable_hlo_passes": "algsimp"}
# Fusion contracts a * b + c into one operation with one rounding instead of two.
_UNFUSED = {"xla_disable_hlo_passes": "algsimp,fusion"}

_MOVES = frozenset(
    [
        "broadcast_in_dim",
        "concatenate",
        "copy",
        "copy_p",
        "expand_dims",
        "iota",
        "pad",
        "reshape",
        "rev",
        "select_n",
        "slice",
        "split",
        "squeeze",
        "stop_gradient",
        "transpose",
        "bitcast_convert_type",
        "convert_element_type",
        "device_put",
    ]
)
_COMPARISONS = frozenset(["eq", "ge", "gt", "is_finite", "le", "lt", "ne"])
_BITS = frozenset(
    [
        "and",
        "clz",
        "not",
        "or",
        "population_count",
        "shift_left",
        "shift_right_arithmetic",
        "shift_right_logical",
        "xor",
        "random_bits",
        "random_fold_in",
        "random_seed",
        "random_split",
        "random_unwrap",
        "random_wrap",
        "threefry2x32",
    ]
)
_EXTREMES = frozenset(
    [
        "argmax",
        "argmin",
        "clamp",
        "cummax",
        "cummin",
        "max",
        "min",
        "reduce_and",
        "reduce_max",
        "reduce_min",
        "reduce_or",
        "sort",
    ]
)
_ROUNDED = frozenset(
    [
        "abs",
        "add",
        "add_any",
        "ceil",
        "div",
        "floor",
        "mul",
        "neg",
        "round",
        "sign",
        "sqrt",
        "square",
        "sub",
    ]
)
_ORDER_FREE_ON_INTEGERS = frozenset(
    ["cumprod", "cumsum", "dot_general", "integer_pow", "reduce_prod", "reduce_sum", "rem"]
)
_CALLS = frozenset(
    """
    closed_call cond custom_jvp_call custom_vjp_call eval_jaxpr jit pjit scan while
    """.split()  # noqa: SIM905
)
_ALWAYS_EXACT = _MOVES | _COMPARISONS | _BITS | _EXTREMES | _ROUNDED | _CALLS

_KEEPS_NONZERO = frozenset({"broadcast_in_dim", "convert_element_type", "reshape", "squeeze"})

_PRODUCTS = frozenset({"mul", "square", "integer_pow"})


def exact_compiler_options(jaxpr: Jaxpr) -> list[dict[str, str]]:
    """Returns the compiler options that keep a traced function bit-exact, fastest first; may be empty."""
    floating = set()
    for equation, nonzero in _equations(jaxpr, set()):
        if not _is_exact(equation, nonzero):
            return []
        if _is_float(equation.outvars[0]):
            floating.add(equation.primitive.name)
    contracts = floating & _PRODUCTS and floating & ADDITIONS
    return [_UNFUSED] if contracts else [_FUSED, _UNFUSED]


def _is_exact(equation: Equation, nonzero: set[Any]) -> bool:
    name = equation.primitive.name
    is_float = any(_is_float(variable) for variable in equation.outvars)
    if name == CONVERT_DTYPE and not is_float:
        # NumPy wraps a float that is out of range for the integer type, XLA clamps it.
        return not _is_float(equation.invars[0])
    if name == DIV and not is_float:
        # Integer division by zero is 0 in NumPy, -1 in XLA.
        return _is_nonzero(equation.invars[1], nonzero)
    if name == INTEGER_POWER and is_float:
        return equation.params["y"] in (1, 2)
    return name in _ALWAYS_EXACT or (name in _ORDER_FREE_ON_INTEGERS and not is_float)


def _is_float(variable: Any) -> bool:
    kind = getattr(getattr(variable.aval, "dtype", None), "kind", "")
    # The dtypes of ml_dtypes, such as bfloat16, have kind V.
    return kind in ("f", "c", "V")


def _is_nonzero(variable: Any, nonzero: set[Any]) -> bool:
    if hasattr(variable, "val"):
        return bool(np.all(variable.val))
    return variable in nonzero


def _equations(jaxpr: Jaxpr, nonzero: set[Any]) -> Iterator[tuple[Any, set[Any]]]:
    """Yields each equation, including those of inner jaxprs, with the variables known to be nonzero."""
    for equation in jaxpr.eqns:
        yield equation, nonzero
        name = equation.primitive.name
        if name in _KEEPS_NONZERO and _is_nonzero(equation.invars[0], nonzero):
            nonzero.add(equation.outvars[0])
        for inner in inner_jaxprs(equation):
            known: set[Any] = set()
            if name in JIT:
                pairs = zip(inner.invars, equation.invars, strict=True)
                known = {mine for mine, given in pairs if _is_nonzero(given, nonzero)}
            yield from _equations(inner, known)
