"""Base class of values that have a component for each replica."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from stratagem._src.core.structures import ValueLeaf

__all__ = ["DistributedValues", "is_value_leaf"]


# The bound type.__instancecheck__ saves a Python call for each node of every flattened structure.
is_value_leaf: Callable[[Any], bool] = ValueLeaf.__instancecheck__


class DistributedValues(ValueLeaf):
    """A value with one component for each replica.

    ``Strategy.run``, iteration over a distributed dataset,
    ``Strategy.experimental_distribute_values_from_function`` and creation of a variable in a strategy's
    scope return one. The components are either kept in sync (``Mirrored``, mirrored variables) or differ
    (``PerReplica``).
    """

    __slots__ = ()

    @property
    def values(self) -> tuple[Any, ...]:
        """The components of this process, in replica order."""
        raise NotImplementedError


def describe(kind: str, components: Sequence[str]) -> str:
    """Returns the multi-line ``repr`` from the class name and the text of each component."""
    rows = ",\n".join(f"  {index}: {text}" for index, text in enumerate(components))
    return f"{kind}:{{\n{rows}\n}}"
