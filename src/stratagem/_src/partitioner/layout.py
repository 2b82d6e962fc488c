"""How one value of the whole program lies on the replicas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

__all__ = ["PARTIAL", "WHOLE", "Layout", "Padded", "Partial", "Split", "Value", "Whole"]


@dataclass(frozen=True, slots=True)
class Whole:
    """Every replica has all of it."""


@dataclass(frozen=True, slots=True)
class Split:
    """Every replica has its own block of one dimension.

    Attributes:
        dim: The dimension, which the number of replicas divides.
    """

    dim: int


@dataclass(frozen=True, slots=True)
class Padded:
    """Every replica has a block of one dimension, which the number of replicas does not divide.

    What follows the last element of the dimension means nothing.

    Attributes:
        dim: The dimension.
        length: How long it is in the whole program.
    """

    dim: int
    length: int


@dataclass(frozen=True, slots=True)
class Partial:
    """Every replica has an array of the whole shape; the value is their sum."""


Layout: TypeAlias = Whole | Split | Padded | Partial

WHOLE = Whole()
PARTIAL = Partial()


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """A value of the whole program.

    Attributes:
        array: What this replica has of it.
        layout: How that makes up the value.
    """

    array: Any
    layout: Layout
