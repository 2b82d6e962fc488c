"""Rejects programs whose replicas could diverge around a collective.

A collective waits for all replicas. In a branch that only some replicas take it waits forever. So a
conditional or loop with collectives needs a predicate that is the same in all replicas. The jaxpr shows
that: the predicate must not depend on values that vary between replicas.
"""

from __future__ import annotations

from collections.abc import Sequence

from stratagem._src.core.errors import ReplicaMismatchError
from stratagem._src.core.types import Equation, Jaxpr
from stratagem._src.jax_compat.primitives import COND, WHILE
from stratagem._src.jaxpr.replication_analysis import (
    ReplicationAnalysis,
    has_collectives,
    is_replication_check,
)
from stratagem._src.jaxpr.walk import all_equations

__all__ = ["check_divergence"]


def check_divergence(jaxpr: Jaxpr, varying: Sequence[bool], num_replicas: int) -> None:
    """Checks that all replicas or none of them reach each collective of a replica's jaxpr.

    Args:
        jaxpr: The program of one replica.
        varying: Whether each input may differ between replicas.
        num_replicas: The number of replicas.

    Raises:
        ReplicaMismatchError: If the replicas may diverge.
    """
    if num_replicas > 1 and any(map(_needs_check, all_equations(jaxpr))):
        _Check().outputs(jaxpr, varying)


def _needs_check(eqn: Equation) -> bool:
    return (eqn.primitive.name in (COND, WHILE) and has_collectives([eqn])) or is_replication_check(
        eqn
    )


class _Check(ReplicationAnalysis):
    def diverges(self, what: str) -> None:
        raise ReplicaMismatchError(
            f"A conditional or loop {what}, but its predicate may differ between replicas, so that not all "
            "of them would take part. Make the predicate the same in all replicas, with "
            "get_replica_context().all_reduce('MAX', predicate) or from values that all replicas share; or "
            "call the collective outside, and select its result with jnp.where."
        )
