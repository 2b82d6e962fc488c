"""Arguments and results of a replica function that is traced once for all replicas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from stratagem._src.core import structures
from stratagem._src.core.errors import ShapeMismatchError
from stratagem._src.core.int64_guard import guard_int64
from stratagem._src.core.torch_tensors import check_not_tensor
from stratagem._src.core.types import ArrayLike, Leaf, PyTree, PyTreeDef
from stratagem._src.execution.replicas.spmd_channel import local_value
from stratagem._src.jax_compat.compile_time_eval import evaluate_now
from stratagem._src.jax_compat.leaked_tracers import find_leaked_tracers, leaked_tracer_error
from stratagem._src.jax_compat.tracer_owner import belongs_to
from stratagem._src.jax_compat.tracing import active_trace, is_tracer
from stratagem._src.mesh.replica_group import ReplicaGroup
from stratagem._src.values.distributed_values import is_value_leaf
from stratagem._src.values.host_arrays import own_host_array
from stratagem._src.values.mirrored import Mirrored
from stratagem._src.values.per_replica import PerReplica
from stratagem._src.values.regroup import is_array

__all__ = ["ReplicaArgument", "ReplicaResult", "place_on_replicas"]


@dataclass(frozen=True, slots=True)
class ReplicaArgument:
    """One leaf of the arguments: an array that is an input of the program, or a static value.

    Attributes:
        array: The global array; ``None`` for a static value.
        static: The static value.
        split: The dim along which the array is sharded; ``None`` if all replicas get the same array.
        local_aval: The shape and dtype of one replica's part.
    """

    array: Any = None
    static: Any = None
    split: int | None = None
    local_aval: Any = None

    @classmethod
    def of(cls, leaf: Leaf, group: ReplicaGroup) -> ReplicaArgument:
        """Returns the argument for one leaf."""
        if isinstance(leaf, PerReplica):
            array = leaf.global_array(group)
            if array is None:
                raise ShapeMismatchError(
                    "In a compiled function every replica's argument must be an array of the same "
                    f"shape, got {leaf!r}. Pass it as an argument of the stratagem.function, which then "
                    "runs eagerly for that call."
                )
            aval = jax.ShapeDtypeStruct(leaf.local_shape, array.dtype)
            return cls(array, split=0, local_aval=aval)
        if isinstance(leaf, Mirrored):
            leaf = leaf._value()
        if is_array(leaf):
            leaf = jnp.asarray(guard_int64(leaf)) if not isinstance(leaf, jax.Array) else leaf
            weak_type = getattr(leaf, "weak_type", False)
            aval = jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, weak_type=weak_type)
            return cls(place_on_replicas(leaf, group), local_aval=aval)
        check_not_tensor(leaf)
        return cls(static=leaf)


@dataclass(frozen=True, slots=True)
class ReplicaResult:
    """What a replica function returns, without its arrays.

    Attributes:
        structure: The structure of the result.
        leaves: Each leaf that is not an array; ``None`` for arrays.
        is_array: Whether each leaf is an array.
        is_scalar: Whether each array is a scalar in one replica.
    """

    structure: PyTreeDef
    leaves: list[Any]
    is_array: list[bool]
    is_scalar: list[bool]

    @classmethod
    def split(cls, result: PyTree) -> tuple[ReplicaResult, list[Any]]:
        """Returns a traced result apart from its arrays, and the arrays."""
        leaves, structure = structures.flatten(result, is_value_leaf)
        leaves = [local_value(leaf) for leaf in leaves]
        arrays = [jnp.asarray(guard_int64(leaf)) for leaf in leaves if is_array(leaf)]
        static = [None if is_array(leaf) else leaf for leaf in leaves]
        _check_static(static)
        is_scalar = [array.ndim == 0 for array in arrays]
        return cls(structure, static, [is_array(leaf) for leaf in leaves], is_scalar), arrays

    @property
    def num_arrays(self) -> int:
        """The number of arrays in the result."""
        return len(self.is_scalar)

    def rebuild(self, arrays: Sequence[Any], group: ReplicaGroup) -> Any:
        """Returns the result of all replicas, given its arrays for all replicas."""
        values = (
            PerReplica.from_global(group, array, scalar=scalar)
            for array, scalar in zip(arrays, self.is_scalar, strict=True)
        )
        leaves = [
            next(values) if array else static
            for array, static in zip(self.is_array, self.leaves, strict=True)
        ]
        return jax.tree.unflatten(self.structure, leaves)


def _check_static(leaves: Sequence[Any]) -> None:
    """Checks that no object in a replica's result holds an array of the replica's trace."""
    trace = active_trace()
    for leaf in leaves:
        if not isinstance(leaf, structures.ValueLeaf):
            for way, tracer in find_leaked_tracers(leaf):
                if belongs_to(tracer, trace):
                    raise leaked_tracer_error(leaf, way)


def place_on_replicas(value: ArrayLike, group: ReplicaGroup) -> Any:
    """Returns a value replicated on the devices of the replicas; a traced value unchanged."""
    if is_tracer(value):
        return value
    # A copy: later changes of a captured NumPy array must not change the program.
    taken_value = value if isinstance(value, jax.Array) else own_host_array(value)
    return evaluate_now(lambda: group.replicate(jnp.asarray(taken_value)))
