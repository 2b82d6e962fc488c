"""``divide``: from a program over a whole batch to one of which every replica does its part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.sharding import PartitionSpec

import stratagem._src.partitioner.control_flow  # noqa: F401
from stratagem._src.collectives.collective_fusion import joined
from stratagem._src.core.errors import UnsupportedError
from stratagem._src.mesh.replica_group import REPLICA_AXIS, ReplicaGroup
from stratagem._src.partitioner.division import Division
from stratagem._src.partitioner.evaluation import evaluate
from stratagem._src.partitioner.inlined_program import flatten, unplaced
from stratagem._src.partitioner.layout import WHOLE, Layout, Split, Value

__all__ = ["divide"]


def divide(
    closed: ClosedJaxpr, split: Sequence[bool], group: ReplicaGroup
) -> Callable[..., list[Any]]:
    """Returns a function that computes what a jaxpr computes, to be compiled by ``jax.jit``.

    The jaxpr was traced with the whole batch, and means what it means on one device; its values are
    those that one device would have computed, to rounding. Results that have a row for each example
    stay with the replicas, unless these belong to several processes; all others every replica has.

    Args:
        closed: What to compute.
        split: Which inputs are sharded in their first dimension over the replicas; every replica has
            all of the others.
        group: The replicas.
    """
    if group.size > 1 and any("Ordered" in type(effect).__name__ for effect in closed.effects):
        raise UnsupportedError(
            "What a step prints or calls back on several devices has no order, got an effect with "
            "ordered=True (jax.debug.print, jax.debug.callback or io_callback). Leave ordered out."
        )
    if closed.effects or not any(split):
        # Effects would take place once in every replica, so that XLA divides what has any.
        compute = jaxpr_as_fun(closed)
        return lambda *arrays: jax.lax.with_sharding_constraint(compute(*arrays), group.replicated)
    consts = [unplaced(const) for const in closed.consts]
    given: list[Layout] = [WHOLE] * len(consts)
    given += [Split(0) if is_split else WHOLE for is_split in split]
    local, returned = _traced_in_one_replica(closed, given, group)
    mapped = jax.shard_map(
        joined(local, [layout != WHOLE or group.spans_processes for layout in given], group),
        mesh=group.mesh,
        in_specs=tuple(_spec(layout) for layout in given),
        out_specs=[_spec(layout) for layout in returned],
        check_vma=False,
    )
    return lambda *arrays: list(mapped(*consts, *arrays))


def _traced_in_one_replica(
    closed: ClosedJaxpr, given: Sequence[Layout], group: ReplicaGroup
) -> tuple[ClosedJaxpr, list[Layout]]:
    program = flatten(closed)
    division = Division(group)
    returned: list[Layout] = []

    def run(*arrays: Any) -> list[Any]:
        inputs = [Value(array, layout) for array, layout in zip(arrays, given, strict=True)]
        outputs = evaluate(division, program, inputs, sums_outputs=True)
        if group.spans_processes:  # so that each can read them
            outputs = [division.convert(value, WHOLE) for value in outputs]
        returned[:] = [value.layout for value in outputs]
        return [value.array for value in outputs]

    avals = [*(jax.typeof(unplaced(const)) for const in closed.consts), *closed.in_avals]
    examples = [_example(aval, layout, division) for aval, layout in zip(avals, given, strict=True)]
    return jax.make_jaxpr(run, axis_env=[(REPLICA_AXIS, group.size)])(*examples), returned


def _example(aval: Any, layout: Layout, division: Division) -> jax.ShapeDtypeStruct:
    shape = aval.shape
    if isinstance(layout, Split):
        shape = division.local_shape(shape, layout.dim)
    return jax.ShapeDtypeStruct(shape, aval.dtype, weak_type=aval.weak_type)


def _spec(layout: Layout) -> PartitionSpec:
    if isinstance(layout, Split):
        return PartitionSpec(*[None] * layout.dim, REPLICA_AXIS)
    return PartitionSpec()
