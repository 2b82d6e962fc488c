"""Calling a function of whole arrays in replicas that have parts of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

import stratagem._src.partitioner.control_flow  # noqa: F401
from stratagem._src.jax_compat.tracing import is_tracer
from stratagem._src.mesh.replica_group import ReplicaGroup
from stratagem._src.partitioner.division import Division
from stratagem._src.partitioner.evaluation import evaluate
from stratagem._src.partitioner.inlined_program import flatten, unplaced
from stratagem._src.partitioner.layout import WHOLE, Layout, Padded, Split, Value

__all__ = ["call_divided", "over_replicas"]


def call_divided(
    fn: Callable[..., Sequence[Any]],
    inputs: Sequence[Value],
    wanted: Sequence[Layout],
    group: ReplicaGroup,
) -> list[Any]:
    """Returns what ``fn`` returns for the whole values, inside the program that all replicas run.

    Args:
        fn: From arrays to arrays. It is traced with whole ones, and means what it means on one device.
        inputs: What this replica has of each argument.
        wanted: How each result is to lie.
        group: The replicas.
    """
    division = Division(group)
    examples = [
        jax.ShapeDtypeStruct(
            division.whole_shape(value),
            value.array.dtype,
            weak_type=getattr(value.array, "weak_type", False),
        )
        for value in inputs
    ]
    closed = jax.make_jaxpr(fn)(*examples)
    consts = [
        Value(const if is_tracer(const) else unplaced(const), WHOLE) for const in closed.consts
    ]
    results = evaluate(division, flatten(closed), [*consts, *inputs], sums_outputs=True)
    return [
        division.convert(value, layout).array for value, layout in zip(results, wanted, strict=True)
    ]


def over_replicas(
    fn: Callable[..., Sequence[Any]],
    given: Sequence[Layout],
    wanted: Sequence[Layout],
    group: ReplicaGroup,
) -> Callable[..., list[Any]]:
    """Returns ``fn`` as a function of global arrays, each replica of which does its part.

    Args:
        fn: As for ``call_divided``.
        given: How each argument lies.
        wanted: How each result is to lie.
        group: The replicas.
    """

    def body(*arrays: Any) -> list[Any]:
        inputs = [Value(array, layout) for array, layout in zip(arrays, given, strict=True)]
        return call_divided(fn, inputs, wanted, group)

    return jax.shard_map(
        body,
        mesh=group.mesh,
        in_specs=tuple(group.placed(_split(layout)).spec for layout in given),
        out_specs=[group.placed(_split(layout)).spec for layout in wanted],
        check_vma=False,
    )


def _split(layout: Layout) -> int | None:
    return layout.dim if isinstance(layout, (Split, Padded)) else None
