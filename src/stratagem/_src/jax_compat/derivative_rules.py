"""Parameters of operations that say how to differentiate them, and nothing about what they compute."""

from __future__ import annotations

from collections.abc import Set

__all__ = ["derivative_rules"]

_RULES: dict[str, frozenset[str]] = {
    "custom_jvp_call": frozenset({"jvp_jaxpr_fun", "symbolic_zeros"}),
    "custom_vjp_call": frozenset({"fwd_jaxpr_thunk", "bwd", "out_trees", "symbolic_zeros"}),
}


def derivative_rules(primitive: str) -> Set[str]:
    """Returns the names of those parameters of a primitive; of what JAX calls otherwise, none."""
    return _RULES.get(primitive, frozenset())
