"""A ``psum_scatter`` of all replicas, through memory that their processes share."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from stratagem._src.collective_backends.shared_memory.combination import Combination
from stratagem._src.collectives.collective_tokens import CollectiveOrder
from stratagem._src.mesh.replica_group import REPLICA_AXIS

__all__ = ["is_scattered_in_memory", "scatter_in_memory"]


def is_scattered_in_memory(eqn: Any, order: CollectiveOrder) -> bool:
    """Returns whether an equation is such a collective, of an array that can be exchanged so."""
    if eqn.primitive.name != "reduce_scatter" or eqn.params["axis_index_groups"] is not None:
        return False
    is_of_all = eqn.params["axis_name"] in (REPLICA_AXIS, (REPLICA_AXIS,))
    return is_of_all and order.can_share(Combination.SCATTER, eqn.invars[0].aval)


def scatter_in_memory(array: Any, params: Any, order: CollectiveOrder) -> Any:
    """Returns this replica's part of the sum of the replicas' arrays.

    Args:
        array: What this replica brings.
        params: Of the collective's equation.
        order: The order of the collectives.
    """
    dimension = params["scatter_dimension"]
    [own] = order.exchange(Combination.SCATTER, [jnp.moveaxis(array, dimension, 0)])
    return jnp.moveaxis(own, 0, dimension) if params["tiled"] else own[0]
