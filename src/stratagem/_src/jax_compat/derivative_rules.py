"""Parameters of primitives that define derivatives and do not affect the computed values."""

from __future__ import annotations

from collections.abc import Set

__all__ = ["derivative_rules"]

_RULES: dict[str, frozenset[str]] = {
    "custom_jvp_call": frozenset({"jvp_jaxpr_fun", "symbolic_zeros"}),
    "custom_vjp_call": frozenset({"fwd_jaxpr_thunk", "bwd", "out_trees", "symbolic_zeros"}),
}


def derivative_rules(primitive: str) -> Set[str]:
    """Returns the names of these parameters of a primitive; empty if it has none or is unknown."""
    return _RULES.get(primitive, frozenset())
