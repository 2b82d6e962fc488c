"""Collectives that can travel with others of their kind, one array of several in a pack."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.collective_backends.shared_memory.combination import Combination
from stratagem._src.collectives.all_reduce import all_reduce_each
from stratagem._src.collectives.collective_tokens import CollectiveOrder
from stratagem._src.collectives.packing import Packing, packed, unpacked
from stratagem._src.core.reduce_op import ReduceOp
from stratagem._src.mesh.replica_group import REPLICA_AXIS, ReplicaGroup

__all__ = ["Exchange", "Kind", "exchange_together", "kind_of", "known_if_equal", "of_equal"]

_REDUCTIONS = {"psum": ReduceOp.SUM, "pmin": ReduceOp.MIN, "pmax": ReduceOp.MAX}


@dataclass(frozen=True, slots=True)
class Kind:
    """What is equal for collectives that may travel together.

    Attributes:
        name: The primitive's name.
        packing: How they are packed.
        routes: Who sends to whom, of a ``ppermute``.
    """

    name: str
    packing: Packing
    routes: tuple[tuple[int, int], ...] = ()


class Exchange(NamedTuple):
    """One array's collective.

    Attributes:
        kind: What is done.
        array: What this replica brings.
        params: The parameters of the collective's equation.
    """

    kind: Kind
    array: Any
    params: Any


def kind_of(eqn: Any, packing: Packing) -> Kind | None:
    """Returns the kind of a collective over all replicas; ``None`` of what cannot be joined."""
    name, params = eqn.primitive.name, eqn.params
    axes = params.get("axes", params.get("axis_name"))
    if axes not in (REPLICA_AXIS, (REPLICA_AXIS,)) or params.get("axis_index_groups") is not None:
        return None
    if len(eqn.invars) != 1 or jnp.issubdtype(eqn.invars[0].aval.dtype, jax.dtypes.extended):
        return None
    if name == "ppermute":
        return Kind(name, packing, tuple((int(a), int(b)) for a, b in params["perm"]))
    return Kind(name, packing) if name in _REDUCTIONS or name == "all_gather" else None


def exchange_together(
    exchanges: Sequence[Exchange], group: ReplicaGroup, order: CollectiveOrder
) -> list[Any]:
    """Returns the result of each collective; those of one kind travel in packs."""
    results: list[Any] = [None] * len(exchanges)
    by_kind: dict[Kind, list[int]] = {}
    for position, exchange in enumerate(exchanges):
        by_kind.setdefault(exchange.kind, []).append(position)
    for kind, positions in by_kind.items():
        arrays = [exchanges[position].array for position in positions]
        shares_memory = order.shares_memory and kind.name != "ppermute"
        packs = kind.packing.plan(arrays, group, shares_memory=shares_memory)
        sent = unpacked(_collective(kind, packed(arrays, packs), group, order), arrays, packs)
        for position, result in zip(positions, sent, strict=True):
            results[position] = _finished(kind, exchanges[position].params, result)
    return results


def known_if_equal(kind: Kind, dtype: Any, group: ReplicaGroup) -> bool:
    """Returns whether the result is known without exchange if all replicas bring the same."""
    if kind.name == "psum":
        count = np.asarray(group.size).astype(dtype)
        is_real = not jnp.issubdtype(dtype, jnp.complexfloating)
        return is_real and (jnp.issubdtype(dtype, jnp.integer) or int(count) == group.size)
    return kind.name != "ppermute"


def of_equal(kind: Kind, array: Any, params: Any, group: ReplicaGroup) -> Any:
    """Returns the result of a collective to which all replicas bring the same array.

    A sum is a multiplication: what adding gives for 2, 3, 4 or 8 replicas, and for others rounded once.
    """
    if kind.name == "psum":
        count = np.asarray(group.size).astype(array.dtype)
        return jax.lax.mul(array, jax.lax.full_like(array, count))
    if kind.name == "all_gather":
        copies = jnp.broadcast_to(array[None], (group.size, *array.shape))
        return _finished(kind, params, copies)
    return array


def _collective(
    kind: Kind, packs: Sequence[Any], group: ReplicaGroup, order: CollectiveOrder
) -> list[Any]:
    if kind.name in _REDUCTIONS:
        return all_reduce_each(_REDUCTIONS[kind.name], packs, group, order)
    if kind.name == "ppermute":
        return [
            order.run(lambda p: jax.lax.ppermute(p, REPLICA_AXIS, kind.routes), p) for p in packs
        ]
    if packs and all(order.can_share(Combination.GATHER, pack) for pack in packs):
        return order.exchange(Combination.GATHER, packs)
    return [order.run(lambda p: jax.lax.all_gather(p, REPLICA_AXIS), pack) for pack in packs]


def _finished(kind: Kind, params: Any, result: Any) -> Any:
    """Returns an array for each replica as ``all_gather`` is to return it; else the result itself."""
    if kind.name != "all_gather":
        return result
    count, *shape = result.shape
    dimension = params["all_gather_dimension"]
    moved = jnp.moveaxis(result, 0, dimension)
    if not params["tiled"]:
        return moved
    shape[dimension] *= count
    return moved.reshape(shape)
