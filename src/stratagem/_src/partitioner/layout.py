"""Layouts: how one value of the global program is laid out over the replicas.

The words are those of PyTorch's DTensor and of GSPMD: a value is replicated, sharded or partial.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from stratagem._src.core.types import Tensor

__all__ = ["PARTIAL", "REPLICATED", "Layout", "Padded", "Partial", "Replicated", "Sharded", "Value"]


@dataclass(frozen=True, slots=True)
class Replicated:
    """Every replica has the full value."""


@dataclass(frozen=True, slots=True)
class Sharded:
    """Every replica has an equal shard along one dimension.

    Attributes:
        dim: The dimension. Its length is divisible by the number of replicas.
    """

    dim: int


@dataclass(frozen=True, slots=True)
class Padded:
    """Every replica has a shard along one dimension whose length is not divisible by the replicas.

    The elements behind the end of the dimension are padding and have arbitrary values.

    Attributes:
        dim: The dimension.
        length: Its length in the global program, without padding.
    """

    dim: int
    length: int


@dataclass(frozen=True, slots=True)
class Partial:
    """Every replica has an array of the global shape; the value is the sum of these arrays."""


Layout: TypeAlias = Replicated | Sharded | Padded | Partial

REPLICATED = Replicated()
PARTIAL = Partial()


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """A value of the global program, as one replica sees it.

    Attributes:
        array: The array of this replica.
        layout: How the replicas' arrays make up the value.
    """

    array: Tensor
    layout: Layout
