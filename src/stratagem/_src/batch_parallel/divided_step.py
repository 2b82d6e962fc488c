"""``DividedStep``: a step over a whole batch, of which every replica does its part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import jaxpr_as_fun
from jax.sharding import NamedSharding, PartitionSpec

import stratagem._src.batch_parallel.control_flow  # noqa: F401
from stratagem._src.batch_parallel.division import Division
from stratagem._src.batch_parallel.evaluation import evaluate
from stratagem._src.batch_parallel.flat_program import flatten
from stratagem._src.batch_parallel.layout import WHOLE, Layout, Split, Value
from stratagem._src.mesh.program_queue import launch
from stratagem._src.mesh.replica_group import REPLICA_AXIS, ReplicaGroup

__all__ = ["DividedStep"]


class DividedStep:
    """Computes what a function of a state and a batch computes, with the batch on several replicas.

    The function is traced with the whole batch, so that it means what it means on one device; what is
    divided is the program. The results have the values that one device would have computed.

    Args:
        function: Takes a state and a batch, which are trees of arrays, and returns a tree of arrays.
        group: The replicas.
        donates_state: Whether the memory of the state may be used for the results.
        name: What the step is called; the same in all processes.
    """

    def __init__(
        self,
        function: Callable[[Any, Any], Any],
        group: ReplicaGroup,
        *,
        donates_state: bool,
        name: str,
    ) -> None:
        self._function = function
        self._group = group
        self._donated = (0,) if donates_state else ()
        self._name = name
        self._divided: dict[tuple[bool, ...], Any] = {}
        self._programs: dict[tuple[Any, ...], Any] = {}

    def __call__(self, state: Any, batch: Any) -> Any:
        """Runs the step.

        Args:
            state: Arrays that every replica has.
            batch: Arrays that are sharded in their first dimension over the replicas, or that every
                replica has.
        """
        return launch(self.prepare(state, batch), (state, batch), self._group, self._name)

    def prepare(self, state: Any, batch: Any) -> Any:
        """Returns the program for such a batch, compiled before its turn comes to be launched."""
        leaves = jax.tree.leaves(batch)
        lying = tuple((leaf.sharding, leaf.shape, leaf.dtype) for leaf in leaves)
        program = self._programs.get(lying)
        if program is None:
            program = self._programs[lying] = self._compile(state, batch)
        return program

    def _compile(self, state: Any, batch: Any) -> Any:
        split = tuple(_is_split(leaf) for leaf in jax.tree.leaves(batch))
        if split not in self._divided:
            self._divided[split] = self._divide(split)
        program = self._divided[split]
        program.lower(state, batch).compile()
        return program

    def _divide(self, split: Sequence[bool]) -> Any:
        def step(state: Any, batch: Any) -> Any:
            if not any(split):
                return self._whole(state, batch)
            examples = jax.tree.map(_example, (state, batch))
            closed, shape = jax.make_jaxpr(self._function, return_shape=True)(*examples)
            if closed.effects:  # which would take place once in every replica
                return self._whole(state, batch)
            given: list[Layout] = [WHOLE] * (len(closed.consts) + len(jax.tree.leaves(state)))
            given += [Split(0) if is_split else WHOLE for is_split in split]
            arrays = [*closed.consts, *jax.tree.leaves((state, batch))]
            return jax.tree.unflatten(
                jax.tree.structure(shape), _run_divided(closed, arrays, given, self._group)
            )

        return jax.jit(step, donate_argnums=self._donated)

    def _whole(self, state: Any, batch: Any) -> Any:
        """Leaves the division to XLA; what is not split is computed by every replica."""
        results = self._function(state, batch)
        return jax.lax.with_sharding_constraint(results, self._group.replicated)


def _example(array: Any) -> jax.ShapeDtypeStruct:
    """Returns what an array is, but not where it lies."""
    return jax.ShapeDtypeStruct(array.shape, array.dtype, weak_type=array.weak_type)


def _is_split(leaf: jax.Array) -> bool:
    sharding = leaf.sharding
    return (
        isinstance(sharding, NamedSharding)
        and len(sharding.spec) > 0
        and sharding.spec[0] == REPLICA_AXIS
    )


def _run_divided(
    closed: Any, arrays: Sequence[Any], layouts: Sequence[Layout], group: ReplicaGroup
) -> list[Any]:
    program = flatten(closed)
    division = Division(group)
    results: list[Layout] = []

    def run(*local: Any) -> list[Any]:
        inputs = [Value(a, layout) for a, layout in zip(local, layouts, strict=True)]
        outputs = evaluate(division, program, inputs, sums_outputs=True)
        if group.spans_processes:  # so that each can read them
            outputs = [division.convert(value, WHOLE) for value in outputs]
        results[:] = [value.layout for value in outputs]
        return [value.array for value in outputs]

    local_shapes = [
        jax.ShapeDtypeStruct(
            division.local_shape(array.shape, layout.dim)
            if isinstance(layout, Split)
            else array.shape,
            array.dtype,
            weak_type=getattr(array, "weak_type", False),
        )
        for array, layout in zip(arrays, layouts, strict=True)
    ]
    local = jax.make_jaxpr(run, axis_env=[(REPLICA_AXIS, group.size)])(*local_shapes)
    mapped = jax.shard_map(
        jaxpr_as_fun(local),
        mesh=group.mesh,
        in_specs=tuple(_spec(layout) for layout in layouts),
        out_specs=[_spec(layout) for layout in results],
        check_vma=False,
    )
    return list(mapped(*arrays))


def _spec(layout: Layout) -> PartitionSpec:
    if isinstance(layout, Split):
        return PartitionSpec(*[None] * layout.dim, REPLICA_AXIS)
    return PartitionSpec()
