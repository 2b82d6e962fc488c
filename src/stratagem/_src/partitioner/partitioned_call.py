"""Calls a function of global arrays in replicas that hold shards of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

import stratagem._src.partitioner.control_flow  # noqa: F401
from stratagem._src.core.types import Tensor
from stratagem._src.jax_compat.tracing import is_tracer
from stratagem._src.mesh.replica_group import ReplicaGroup
from stratagem._src.partitioner.evaluation import evaluate
from stratagem._src.partitioner.inlined_program import flatten, unsharded_constant
from stratagem._src.partitioner.layout import REPLICATED, Layout, Padded, Sharded, Value
from stratagem._src.partitioner.sharding_context import ShardingContext

__all__ = ["call_partitioned", "partition_over_replicas"]


def call_partitioned(
    fn: Callable[..., Sequence[Any]],
    inputs: Sequence[Value],
    wanted: Sequence[Layout],
    group: ReplicaGroup,
) -> list[Any]:
    """Returns the results of ``fn`` for the global values, inside the program that all replicas run.

    Args:
        fn: From arrays to arrays. It is traced with global shapes and has the semantics of one device.
        inputs: This replica's part of each argument.
        wanted: The layout of each result.
        group: The replicas.
    """
    ctx = ShardingContext(group)
    examples = [
        jax.ShapeDtypeStruct(
            ctx.global_shape(value),
            value.array.dtype,
            weak_type=getattr(value.array, "weak_type", False),
        )
        for value in inputs
    ]
    closed = jax.make_jaxpr(fn)(*examples)
    consts = [
        Value(const if is_tracer(const) else unsharded_constant(const), REPLICATED)
        for const in closed.consts
    ]
    results = evaluate(ctx, flatten(closed), [*consts, *inputs], reduce_outputs=True)
    return [ctx.reshard(value, layout).array for value, layout in zip(results, wanted, strict=True)]


def partition_over_replicas(
    fn: Callable[..., Sequence[Any]],
    given: Sequence[Layout],
    wanted: Sequence[Layout],
    group: ReplicaGroup,
) -> Callable[..., list[Any]]:
    """Returns ``fn`` as a function of global arrays, partitioned over the replicas.

    Args:
        fn: As for ``call_partitioned``.
        given: The layout of each argument.
        wanted: The layout of each result.
        group: The replicas.
    """

    def body(*arrays: Tensor) -> list[Any]:
        inputs = [Value(array, layout) for array, layout in zip(arrays, given, strict=True)]
        return call_partitioned(fn, inputs, wanted, group)

    return jax.shard_map(
        body,
        mesh=group.mesh,
        in_specs=tuple(group.named_sharding(_split(layout)).spec for layout in given),
        out_specs=[group.named_sharding(_split(layout)).spec for layout in wanted],
        check_vma=False,
    )


def _split(layout: Layout) -> int | None:
    return layout.dim if isinstance(layout, (Sharded, Padded)) else None
