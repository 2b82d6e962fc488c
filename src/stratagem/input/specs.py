"""The shapes and types of distributed elements."""

from __future__ import annotations

from typing import Any

import jax

from stratagem.core.replica_group import ReplicaGroup
from stratagem.data.tensor_spec import TensorSpec

__all__ = ["PerReplicaSpec", "distributed_spec"]


class PerReplicaSpec:
    """The specs of a per-replica value's components.

    >>> from stratagem.data import TensorSpec
    >>> PerReplicaSpec(TensorSpec([None], "int32"), TensorSpec([None], "int32"))
    PerReplicaSpec(TensorSpec(shape=(None,), dtype=int32, name=None), \
TensorSpec(shape=(None,), dtype=int32, name=None))
    """

    def __init__(self, *value_specs: Any) -> None:
        self.value_specs = value_specs

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PerReplicaSpec) and other.value_specs == self.value_specs

    def __hash__(self) -> int:
        return hash(self.value_specs)

    def __repr__(self) -> str:
        return f"PerReplicaSpec({', '.join(map(repr, self.value_specs))})"


def distributed_spec(element_spec: Any, group: ReplicaGroup) -> Any:
    """Returns the spec of a distributed element: rows unknown, once for each local replica."""

    def spread(spec: TensorSpec) -> Any:
        rows_unknown = TensorSpec([None, *spec.shape[1:]], spec.dtype, spec.name)
        return (
            rows_unknown if group.size == 1 else PerReplicaSpec(*[rows_unknown] * group.local_size)
        )

    return jax.tree.map(spread, element_spec, is_leaf=lambda x: isinstance(x, TensorSpec))
