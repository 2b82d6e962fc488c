"""Specs of distributed elements: their shapes and dtypes per replica."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stratagem._src.core import structures
from stratagem._src.core.types import ArraySpec, ElementSpec
from stratagem._src.data.dataset_spec import DatasetSpec
from stratagem._src.data.tensor_spec import TensorSpec
from stratagem._src.input.divisible import nested_dataset_error
from stratagem._src.mesh.replica_group import ReplicaGroup

__all__ = ["PerReplicaSpec", "distributed_spec", "is_static", "with_rows"]


class PerReplicaSpec:
    """The specs of a per-replica value's components.

    >>> from stratagem.data import TensorSpec
    >>> PerReplicaSpec(TensorSpec([None], "int32"), TensorSpec([None], "int32"))
    PerReplicaSpec(TensorSpec(shape=(None,), dtype=int32, name=None), \
TensorSpec(shape=(None,), dtype=int32, name=None))
    """

    def __init__(self, *value_specs: ArraySpec) -> None:
        self.value_specs = value_specs

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PerReplicaSpec) and other.value_specs == self.value_specs

    def __hash__(self) -> int:
        return hash(self.value_specs)

    def __repr__(self) -> str:
        return f"PerReplicaSpec({', '.join(map(repr, self.value_specs))})"


def distributed_spec(
    element_spec: ElementSpec, group: ReplicaGroup, part: Callable[[TensorSpec], TensorSpec]
) -> Any:
    """Returns the spec of a distributed element: a shard's spec, once per local replica.

    Args:
        element_spec: The spec of the dataset's elements.
        group: The replicas.
        part: Maps the spec of an array to the spec of one replica's shard of it.
    """

    def spread(spec: TensorSpec | DatasetSpec) -> Any:
        if isinstance(spec, DatasetSpec):
            raise nested_dataset_error()
        mine = part(spec)
        return mine if group.size == 1 else PerReplicaSpec(*[mine] * group.local_size)

    return structures.map_structure(spread, element_spec, lambda x: isinstance(x, TensorSpec))


def with_rows(spec: TensorSpec, num_rows: int | None) -> TensorSpec:
    """Returns the spec of a batch with another number of rows, ``None`` if unknown.

    >>> with_rows(TensorSpec([8, 3]), 4)
    TensorSpec(shape=(4, 3), dtype=float32, name=None)
    """
    if not spec.shape.rank:
        return spec
    return TensorSpec([num_rows, *spec.shape[1:]], spec.dtype, spec.name)


def is_static(element_spec: ElementSpec) -> bool:
    """Returns whether all elements are known to have the same shapes."""
    specs = structures.leaves_of(element_spec, lambda x: isinstance(x, TensorSpec))
    return all(spec.shape.is_fully_defined() for spec in specs)
