"""``partition``: turns a program over the global batch into one that every replica runs on its shard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.sharding import PartitionSpec

import stratagem._src.partitioner.control_flow  # noqa: F401
from stratagem._src.collectives.collective_fusion import fuse_collectives
from stratagem._src.core.errors import UnsupportedError
from stratagem._src.core.types import ArraySpec, Jaxpr, Tensor
from stratagem._src.mesh.replica_group import REPLICA_AXIS, ReplicaGroup
from stratagem._src.partitioner.evaluation import evaluate
from stratagem._src.partitioner.inlined_program import flatten, unsharded_constant
from stratagem._src.partitioner.layout import REPLICATED, Layout, Sharded, Value
from stratagem._src.partitioner.sharding_context import ShardingContext

__all__ = ["partition"]


def partition(
    closed: ClosedJaxpr,
    split: Sequence[bool],
    group: ReplicaGroup,
    rewrite_replica: Callable[[Jaxpr], Jaxpr] = lambda jaxpr: jaxpr,
) -> Callable[..., list[Any]]:
    """Returns a function that computes what a jaxpr computes, partitioned over the replicas.

    Compile it with ``jax.jit``. The jaxpr is traced with the global batch and has the semantics of one
    device; the results are those of one device up to rounding. Results with a row for each example stay
    sharded, unless the replicas belong to several processes; all other results are replicated.

    Args:
        closed: The program.
        split: Which inputs are sharded over the replicas in their first dimension. The others are
            replicated.
        group: The replicas.
        rewrite_replica: A pass over the program of one replica, whose arrays are on its device.
    """
    if group.size > 1 and any("Ordered" in type(effect).__name__ for effect in closed.effects):
        raise UnsupportedError(
            "Callbacks of a step on several devices must not be ordered, got an effect with "
            "ordered=True (jax.debug.print, jax.debug.callback or io_callback). Leave ordered out."
        )
    if closed.effects or not any(split):
        # Every replica would repeat the effects, so XLA partitions programs that have effects.
        compute = jaxpr_as_fun(closed)
        replicated = group.program_sharding(group.replicated)
        return lambda *arrays: jax.lax.with_sharding_constraint(compute(*arrays), replicated)
    consts = [unsharded_constant(const) for const in closed.consts]
    given: list[Layout] = [REPLICATED] * len(consts)
    given += [Sharded(0) if is_split else REPLICATED for is_split in split]
    # Traces the program of one replica first, and then fuses its collectives.
    local, returned = _trace_one_replica(closed, given, group)
    local = local.replace(jaxpr=rewrite_replica(local.jaxpr))
    mapped = jax.shard_map(
        fuse_collectives(
            local, [layout != REPLICATED or group.spans_processes for layout in given], group
        ),
        mesh=group.mesh,
        in_specs=tuple(_spec(layout) for layout in given),
        out_specs=[_spec(layout) for layout in returned],
        check_vma=False,
    )
    return lambda *arrays: list(mapped(*consts, *arrays))


def _trace_one_replica(
    closed: ClosedJaxpr, given: Sequence[Layout], group: ReplicaGroup
) -> tuple[ClosedJaxpr, list[Layout]]:
    program = flatten(closed)
    ctx = ShardingContext(group)
    returned: list[Layout] = []

    def run(*arrays: Tensor) -> list[Any]:
        inputs = [Value(array, layout) for array, layout in zip(arrays, given, strict=True)]
        outputs = evaluate(ctx, program, inputs, reduce_outputs=True)
        if group.spans_processes:  # every process must be able to read the outputs
            outputs = [ctx.reshard(value, REPLICATED) for value in outputs]
        returned[:] = [value.layout for value in outputs]
        return [value.array for value in outputs]

    avals = [*(jax.typeof(unsharded_constant(const)) for const in closed.consts), *closed.in_avals]
    examples = [_example(aval, layout, ctx) for aval, layout in zip(avals, given, strict=True)]
    return jax.make_jaxpr(run, axis_env=[(REPLICA_AXIS, group.size)])(*examples), returned


def _example(aval: ArraySpec, layout: Layout, ctx: ShardingContext) -> jax.ShapeDtypeStruct:
    shape = aval.shape
    if isinstance(layout, Sharded):
        shape = ctx.local_shape(shape, layout.dim)
    return jax.ShapeDtypeStruct(shape, aval.dtype, weak_type=aval.weak_type)


def _spec(layout: Layout) -> PartitionSpec:
    if isinstance(layout, Sharded):
        return PartitionSpec(*[None] * layout.dim, REPLICA_AXIS)
    return PartitionSpec()
