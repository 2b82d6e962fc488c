"""Which traced functions give the same bits however XLA compiles them.

Moving data, arithmetic on integers, and the floating point operations that IEEE 754 defines to the
last bit do. Sums of floats depend on their order, and ``exp`` and its like on the vector width, so
a function that uses them is called element by element.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

__all__ = ["exact_compilers"]

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
        "dynamic_slice",
        "dynamic_update_slice",
        "expand_dims",
        "gather",
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
    ["closed_call", "cond", "custom_jvp_call", "custom_vjp_call", "jit", "pjit", "scan", "while"]
)
_ALWAYS_EXACT = _MOVES | _COMPARISONS | _BITS | _EXTREMES | _ROUNDED | _CALLS

_PRODUCTS = frozenset({"mul", "square", "integer_pow"})
_SUMS = frozenset({"add", "add_any", "sub"})


def exact_compilers(jaxpr: Any) -> list[dict[str, str]]:
    """Returns the compiler options that keep the bits of a traced function, fastest first."""
    floating = set()
    for equation in _equations(jaxpr):
        name = equation.primitive.name
        is_float = any(_is_float(variable) for variable in equation.outvars)
        exact_here = name in _ORDER_FREE_ON_INTEGERS and not is_float
        squares = name == "integer_pow" and equation.params["y"] in (1, 2)
        if not (name in _ALWAYS_EXACT or exact_here or squares):
            return []
        if is_float:
            floating.add(name)
    contracts = floating & _PRODUCTS and floating & _SUMS
    return [_UNFUSED] if contracts else [_FUSED, _UNFUSED]


def _is_float(variable: Any) -> bool:
    kind = getattr(getattr(variable.aval, "dtype", None), "kind", "")
    # The small floats of ml_dtypes, such as bfloat16, are of kind V.
    return kind in ("f", "c", "V")


def _equations(jaxpr: Any) -> Iterator[Any]:
    for equation in jaxpr.eqns:
        yield equation
        for parameter in equation.params.values():
            for part in parameter if isinstance(parameter, tuple | list) else (parameter,):
                inner = getattr(part, "jaxpr", part)
                if hasattr(inner, "eqns"):
                    yield from _equations(inner)
