"""Checks that all replicas of a program take part in its collectives, also inside conditionals.

A collective waits for all replicas. In a branch that some of them do not take it would wait for ever. So
a conditional or loop with collectives needs a predicate that is the same in all replicas, which shows in
the jaxpr: it does not depend on what differs between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stratagem._src.core.errors import ReplicaMismatchError
from stratagem._src.jax_compat.tracing import all_equations
from stratagem._src.jaxpr.replication_analysis import ReplicaFlow, has_collectives, is_demand

__all__ = ["check_taking_part"]


def check_taking_part(jaxpr: Any, differs: Sequence[bool], num_replicas: int) -> None:
    """Checks that every collective of a replica's jaxpr is reached by all replicas or by none.

    Args:
        jaxpr: What one replica computes.
        differs: Of each input, whether replicas have values of their own.
        num_replicas: Number of replicas.

    Raises:
        ReplicaMismatchError: If some might not reach it.
    """
    if num_replicas > 1 and any(map(_needs_check, all_equations(jaxpr))):
        _Check().outputs(jaxpr, differs)


def _needs_check(eqn: Any) -> bool:
    return (eqn.primitive.name in ("cond", "while") and has_collectives([eqn])) or is_demand(eqn)


class _Check(ReplicaFlow):
    def diverges(self, what: str) -> None:
        raise ReplicaMismatchError(
            f"A conditional or loop {what}, but its predicate may differ between replicas, so that not all "
            "of them would take part. Make it the same in all of them, by "
            "get_replica_context().all_reduce('MAX', predicate) or from what all replicas share; or call "
            "the collective outside, and choose its result by jnp.where."
        )
