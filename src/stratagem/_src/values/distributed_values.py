"""Base class of values that have a component for each replica."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from stratagem._src.core.structures import ValueLeaf

__all__ = ["DistributedValues", "is_value_leaf"]


# The bound type.__instancecheck__ spares a Python call for each node of every flattened structure.
is_value_leaf: Callable[[Any], bool] = ValueLeaf.__instancecheck__


class DistributedValues(ValueLeaf):
    """A value with one component for each replica.

    Made by ``Strategy.run``, by iterating over a distributed dataset, by
    ``Strategy.experimental_distribute_values_from_function``, and by creating a variable in a
    strategy's scope. The components may be kept in sync (``Mirrored``, mirrored variables) or differ
    (``PerReplica``).
    """

    __slots__ = ()

    @property
    def values(self) -> tuple[Any, ...]:
        """The components, in the order of the replicas; only this process's, if there are more."""
        raise NotImplementedError


def describe(kind: str, components: Sequence[str]) -> str:
    """Returns the multi-line text for ``kind`` and the text of each replica's component."""
    rows = ",\n".join(f"  {index}: {text}" for index, text in enumerate(components))
    return f"{kind}:{{\n{rows}\n}}"
