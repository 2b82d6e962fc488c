"""Runs a function in all replicas, for collectives outside of ``strategy.run``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec

from stratagem._src.collectives.collective_jit import jit_with_collectives
from stratagem._src.core.errors import ShapeMismatchError
from stratagem._src.core.types import Tensor
from stratagem._src.mesh.backend_lifetime import when_backend_ends
from stratagem._src.mesh.dispatch_queue import launch
from stratagem._src.mesh.replica_group import REPLICA_AXIS, ReplicaGroup
from stratagem._src.values.per_replica import PerReplica

__all__ = ["run_on_replicas", "spmd_map"]


def spmd_map(fn: Callable[..., Any], values: Sequence[PerReplica], group: ReplicaGroup) -> Any:
    """Calls ``fn`` inside one SPMD program with each replica's components; results are replicated.

    ``fn`` gets the local arrays of ``values`` and returns arrays that are the same in all replicas. Works
    while a function is traced.
    """
    arrays = [value.global_array(group) for value in values]
    if any(array is None for array in arrays):
        raise ShapeMismatchError(
            "In a compiled function every replica's value must have the same shape. Got "
            f"{[[np.shape(v) for v in value.values] for value in values]}. Run it eagerly instead."
        )
    scalars = [value.scalar for value in values]

    def body(*blocks: Tensor) -> Any:
        return fn(
            *(
                block.reshape(()) if scalar else block
                for block, scalar in zip(blocks, scalars, strict=True)
            )
        )

    mapped = jax.shard_map(
        body,
        mesh=group.mesh,
        in_specs=PartitionSpec(REPLICA_AXIS),
        out_specs=PartitionSpec(),
        check_vma=False,
    )
    return mapped(*arrays)


def run_on_replicas(
    name: str,
    key: tuple[Any, ...],
    make_fn: Callable[[], Callable[..., Any]],
    values: Sequence[PerReplica],
    group: ReplicaGroup,
) -> Any:
    """Like ``spmd_map``, for concrete values: compiles once for each ``key``, and runs at once.

    Args:
        name: A description of the program.
        key: The cache key, together with the name.
        make_fn: Returns the function.
        values: The values.
        group: The replicas.
    """
    arrays = [value.global_array(group) for value in values]
    scalars = tuple(value.scalar for value in values)
    program = _program((name, *key, scalars, group), make_fn, scalars, group)
    return launch(program, tuple(arrays), group, name)


# Compiled programs hold devices, so the cache is cleared with the backend.
_programs: dict[tuple[Any, ...], Any] = {}
when_backend_ends(_programs.clear)


def _program(
    key: tuple[Any, ...],
    make_fn: Callable[[], Callable[..., Any]],
    scalars: tuple[bool, ...],
    group: ReplicaGroup,
) -> Any:
    if key not in _programs:
        fn = make_fn()

        def program(*arrays: Tensor) -> Any:
            wrapped = [
                PerReplica.from_global(group, array, scalar=scalar)
                for array, scalar in zip(arrays, scalars, strict=True)
            ]
            return spmd_map(fn, wrapped, group)

        _programs[key] = jit_with_collectives(program, group)
    return _programs[key]
