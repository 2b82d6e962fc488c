"""The interface of all checkpoint formats: arrays by name, and optimizer state by role and variable."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from stratagem._src.checkpoint.format.checkpoint_path import CheckpointPath
from stratagem._src.core.errors import InvalidArgumentError, NotFoundError
from stratagem._src.core.types import Leaf

__all__ = [
    "DeferredValues",
    "NamedValue",
    "OptimizerArrays",
    "SavedArray",
    "SavedCheckpoint",
    "VariableKey",
    "deferred_by_key",
]

VariableKey = str | int
"""The name of an optimizer's variable in the checkpoint; its index in the optimizer if it has none."""


class NamedValue(NamedTuple):
    """A value that was read.

    Attributes:
        name: Its name in the checkpoint.
        value: The value.
    """

    name: str
    value: np.ndarray[Any, Any]


class DeferredValues(NamedTuple):
    """The values of an object that was not built when the checkpoint was read.

    Attributes:
        names: The names of all of them in the checkpoint.
        values_for: Returns the values for variables of the object, given the object, the variables by key,
            and whether these are all of its variables. It raises ``InvalidArgumentError`` if one is
            missing.
    """

    names: Collection[str]
    values_for: Callable[[Leaf, Mapping[str, Any], bool], Mapping[str, NamedValue]]


class SavedArray(Protocol):
    """An array of a checkpoint. All methods raise ``DataLossError`` if a file is corrupt."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Its dtype."""

    def start_read(self) -> None:
        """Starts to read the full array asynchronously, for ``read``."""

    def read(self) -> np.ndarray[Any, Any]:
        """Returns the full array, verified."""

    def rows(self, begin: int, end: int) -> np.ndarray[Any, Any]:
        """Returns consecutive rows; the full array if ``end`` is -1 or it is a scalar."""

    def verify(self, begin: int = 0, end: int = -1) -> None:
        """Checks rows block by block, by default all."""


class OptimizerArrays(NamedTuple):
    """The arrays of an optimizer's state.

    Attributes:
        shared: Arrays that exist once, such as a step count, by their name in the state.
        of: Arrays per variable, by their name in the state and then by variable. On parameter servers, step
            counts are among these.
        variables: The local variables, in the optimizer's order, if they were recorded.
    """

    shared: dict[str, SavedArray]
    of: dict[str, dict[VariableKey, SavedArray]]
    variables: Sequence[VariableKey] | None = None


class SavedCheckpoint(Protocol):
    """A saved checkpoint.

    Attributes:
        fingerprint: A checksum that differs between checkpoints with different content.
    """

    fingerprint: int

    @property
    def names(self) -> Collection[str]:
        """Names of its arrays, without optimizer state."""

    @property
    def optimizers(self) -> Collection[str]:
        """Names of its optimizers."""

    def array(self, name: str) -> SavedArray:
        """Returns an array."""

    def of_each_worker(self, name: str) -> list[SavedArray]:
        """Returns the array that each of the saving workers saved under a name."""

    def optimizer(self, name: str) -> OptimizerArrays:
        """Returns the arrays of an optimizer's state."""

    def deferred(self, name: str, unbuilt: Leaf) -> DeferredValues:
        """Reads the values of an unbuilt object now: the checkpoint may be gone when it is built.

        Raises:
            NotFoundError: If the checkpoint has none.
        """


def deferred_by_key(saved: SavedCheckpoint, name: str, path: CheckpointPath) -> DeferredValues:
    """Reads the values of an unbuilt object that were saved under the keys of its variables.

    Args:
        saved: The checkpoint.
        name: The object's name.
        path: The checkpoint's path, for messages.

    Raises:
        NotFoundError: If the checkpoint has none.
    """
    values = {
        found.removeprefix(f"{name}/"): NamedValue(found, saved.array(found).read())
        for found in saved.names
        if found.startswith(f"{name}/")
    }
    if not values:
        raise NotFoundError(f"The checkpoint {path} has no {name!r}; it has {sorted(saved.names)}.")

    def values_for(
        one: Leaf, held: Mapping[str, Any], is_complete: bool
    ) -> Mapping[str, NamedValue]:
        if held.keys() - values.keys() or (is_complete and values.keys() - held.keys()):
            raise InvalidArgumentError(
                f"Objects must match the checkpoint {path} in shape and dtype: {name!r} has {len(held)} "
                f"variables, but the checkpoint {len(values)}. Create them as they were saved."
            )
        return {key: values[key] for key in held}

    return DeferredValues([named.name for named in values.values()], values_for)
