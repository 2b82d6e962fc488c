"""What every format of checkpoint gives: arrays by name, and those of optimizers by what they are."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np

__all__ = ["OptimizerArrays", "SavedArray", "SavedCheckpoint", "VariableKey"]

VariableKey = str | int
"""The name of an optimizer's variable in the checkpoint; its number there if it has none."""


class SavedArray(Protocol):
    """An array of a checkpoint. All of it raises ``DataLossError`` where a file is damaged."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Its element type."""

    def begin(self) -> None:
        """Begins to read all of it, for ``whole``."""

    def whole(self) -> np.ndarray[Any, Any]:
        """Returns the array, when all of it has been checked."""

    def rows(self, begin: int, end: int) -> np.ndarray[Any, Any]:
        """Returns consecutive rows; everything of a scalar, and with ``end`` -1."""

    def verify(self, begin: int = 0, end: int = -1) -> None:
        """Checks rows, by default all, without holding more than a few of them."""


class OptimizerArrays(NamedTuple):
    """The arrays of an optimizer's state.

    Attributes:
        shared: What it has once, as a count of steps, by what they are.
        of: What it has for each variable, by what they are and then by variable. On parameter servers
            a count of steps is among these.
        in_order: All arrays that it has beside variables of its process, if what they are was not noted.
        in_order_on_servers: The same of what it has beside variables on parameter servers.
        variables: The variables of its process, in its order, if that was noted.
    """

    shared: dict[str, SavedArray]
    of: dict[str, dict[VariableKey, SavedArray]]
    in_order: Sequence[SavedArray] | None = None
    in_order_on_servers: Mapping[str, Sequence[SavedArray]] = MappingProxyType({})
    variables: Sequence[VariableKey] | None = None


class SavedCheckpoint(Protocol):
    """A checkpoint that was saved.

    Attributes:
        fingerprint: A number that differs for checkpoints with other content.
    """

    fingerprint: int

    @property
    def names(self) -> Collection[str]:
        """Names of its arrays; not those of optimizers' states."""

    @property
    def optimizers(self) -> Collection[str]:
        """Names of its optimizers."""

    def array(self, name: str) -> SavedArray:
        """Returns an array."""

    def of_each_worker(self, name: str) -> list[SavedArray]:
        """Returns what each of the workers that have saved it together has saved under a name."""

    def optimizer(self, name: str) -> OptimizerArrays:
        """Returns the arrays of an optimizer's state."""
