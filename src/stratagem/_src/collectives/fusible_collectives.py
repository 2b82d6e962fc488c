"""Collectives that can be fused: arrays with the same fusion key are packed and sent as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.collective_backends.shared_memory.collective_op import CollectiveOp
from stratagem._src.collectives.all_reduce import all_reduce_each
from stratagem._src.collectives.collective_tokens import CollectiveTokens
from stratagem._src.collectives.packing import Packing, packed, unpacked
from stratagem._src.core.reduce_op import ReduceOp
from stratagem._src.core.types import DTypeLike, Equation, EquationParams, Tensor
from stratagem._src.jax_compat.primitives import (
    ALL_GATHER,
    PMAX,
    PMIN,
    PPERMUTE,
    PSUM,
    collective_axes,
)
from stratagem._src.mesh.replica_group import REPLICA_AXIS, ReplicaGroup

__all__ = [
    "FusionKey",
    "PendingCollective",
    "fusion_key",
    "is_known_if_replicated",
    "result_if_replicated",
    "run_fused",
]

_REDUCTIONS = {PSUM: ReduceOp.SUM, PMIN: ReduceOp.MIN, PMAX: ReduceOp.MAX}


@dataclass(frozen=True, slots=True)
class FusionKey:
    """Equal for collectives that may be fused.

    Attributes:
        name: The primitive's name.
        packing: How the arrays are packed.
        routes: The (source, destination) pairs of a ``ppermute``.
    """

    name: str
    packing: Packing
    routes: tuple[tuple[int, int], ...] = ()


class PendingCollective(NamedTuple):
    """The collective of one array, to be fused with others.

    Attributes:
        key: Which collective it is.
        array: The operand of this replica.
        params: The parameters of the collective's equation.
    """

    key: FusionKey
    array: Any
    params: Any


def fusion_key(eqn: Equation, packing: Packing) -> FusionKey | None:
    """Returns the key of a collective over all replicas; ``None`` if it cannot be fused."""
    name, params = eqn.primitive.name, eqn.params
    # A collective within groups of replicas moves other data than one over all of them.
    is_of_all = params.get("axis_index_groups") is None
    if collective_axes(eqn) != (REPLICA_AXIS,) or not is_of_all:
        return None
    # PRNG keys have extended dtypes, which cannot be concatenated with anything.
    if len(eqn.invars) != 1 or jnp.issubdtype(eqn.invars[0].aval.dtype, jax.dtypes.extended):
        return None
    if name == PPERMUTE:
        return FusionKey(name, packing, tuple((int(a), int(b)) for a, b in params["perm"]))
    return FusionKey(name, packing) if name in _REDUCTIONS or name == ALL_GATHER else None


def run_fused(
    pending: Sequence[PendingCollective], group: ReplicaGroup, tokens: CollectiveTokens
) -> list[Any]:
    """Returns the result of each collective; those with the same key are fused."""
    results: list[Any] = [None] * len(pending)
    by_key: dict[FusionKey, list[int]] = {}
    for position, collective in enumerate(pending):
        by_key.setdefault(collective.key, []).append(position)
    for key, positions in by_key.items():
        arrays = [pending[position].array for position in positions]
        shares_memory = tokens.shares_memory and key.name != PPERMUTE
        packs = key.packing.plan(arrays, group, shares_memory=shares_memory)
        sent = unpacked(_run(key, packed(arrays, packs), group, tokens), arrays, packs)
        # By position: the results of all keys go back to where their collectives stood.
        for position, result in zip(positions, sent, strict=True):
            results[position] = _finished(key, pending[position].params, result)
    return results


def is_known_if_replicated(key: FusionKey, dtype: DTypeLike, group: ReplicaGroup) -> bool:
    """Returns whether a replicated operand determines the result, without communication."""
    if key.name == PSUM:
        # The product has the bits of the sum if the dtype holds the count: bfloat16 has no 257. Integers
        # wrap alike in both. Complex products turn inf into nan (inf * 0), which sums do not.
        count = np.asarray(group.size).astype(dtype)
        is_real = not jnp.issubdtype(dtype, jnp.complexfloating)
        return is_real and (jnp.issubdtype(dtype, jnp.integer) or int(count) == group.size)
    return key.name != PPERMUTE


def result_if_replicated(
    key: FusionKey, array: Tensor, params: EquationParams, group: ReplicaGroup
) -> Any:
    """Returns the result of a collective whose operand is the same in all replicas.

    A sum becomes a multiplication by the number of replicas. For 2, 3, 4 or 8 replicas that has the same
    bits as the sum; for other numbers it rounds only once.
    """
    if key.name == PSUM:
        count = np.asarray(group.size).astype(array.dtype)
        return jax.lax.mul(array, jax.lax.full_like(array, count))
    if key.name == ALL_GATHER:
        copies = jnp.broadcast_to(array[None], (group.size, *array.shape))
        return _finished(key, params, copies)
    return array


def _run(
    key: FusionKey, packs: Sequence[Any], group: ReplicaGroup, tokens: CollectiveTokens
) -> list[Any]:
    if key.name in _REDUCTIONS:
        return all_reduce_each(_REDUCTIONS[key.name], packs, group, tokens)
    if key.name == PPERMUTE:
        return [
            tokens.run(lambda p: jax.lax.ppermute(p, REPLICA_AXIS, key.routes), p) for p in packs
        ]
    if packs and all(tokens.can_share(CollectiveOp.GATHER, pack) for pack in packs):
        return tokens.run_on_host(CollectiveOp.GATHER, packs)
    return [tokens.run(lambda p: jax.lax.all_gather(p, REPLICA_AXIS), pack) for pack in packs]


def _finished(key: FusionKey, params: EquationParams, result: Tensor) -> Any:
    """Returns gathered arrays in the shape that ``all_gather`` specifies; other results unchanged."""
    if key.name != ALL_GATHER:
        return result
    # A pack was gathered along a new first dimension, whatever dimension the equation asked for.
    count, *shape = result.shape
    dimension = params["all_gather_dimension"]
    moved = jnp.moveaxis(result, 0, dimension)
    if not params["tiled"]:
        return moved
    shape[dimension] *= count
    return moved.reshape(shape)
