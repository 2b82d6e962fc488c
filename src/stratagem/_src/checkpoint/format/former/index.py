"""What a checkpoint says of itself: its arrays, and what optimizers they belong to.

The index is JSON with a checksum of its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["CheckpointIndex", "SavedArray", "SavedOptimizer", "SavedState", "state_array_name"]

VERSION = 2

CHECKSUM = "crc32c"
HERE = "here"
ON_SERVERS = "on_servers"


@dataclass(frozen=True, slots=True)
class SavedArray:
    """An array of a checkpoint.

    Attributes:
        shape: Its shape.
        dtype: Name of its element type.
        checksum: CRC-32C of its file; ``None`` in checkpoints of version 1.
    """

    shape: tuple[int, ...]
    dtype: str
    checksum: int | None = None

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


@dataclass(frozen=True, slots=True)
class SavedState:
    """The arrays of an optimizer's state.

    Attributes:
        arrays: Their names in the checkpoint.
        leaves: What each is in the optimizer's state; ``None`` if that was not noted.
        variables: The checkpoint's names of the variables that it is for, in the optimizer's order,
            ``None`` for one that is not in the checkpoint; ``None`` for all if that was not noted.
    """

    arrays: tuple[str, ...]
    leaves: tuple[str, ...] | None = None
    variables: tuple[str | None, ...] | None = None


@dataclass(frozen=True, slots=True)
class SavedOptimizer:
    """What is saved of an optimizer.

    Attributes:
        here: Its state in the process that saved it; ``None`` from before its first step.
        on_servers: Its state beside variables on parameter servers, by the variables' names.
    """

    here: SavedState | None = None
    on_servers: Mapping[str, SavedState] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CheckpointIndex:
    """The table of contents of a checkpoint.

    Attributes:
        arrays: All arrays, by name.
        optimizers: The optimizers, by name.
        of_workers: Of workers other than the leader, by number: what each has of its own in place of
            the array with the same name.
    """

    arrays: Mapping[str, SavedArray]
    optimizers: Mapping[str, SavedOptimizer]
    of_workers: Mapping[int, Mapping[str, SavedArray]] = field(default_factory=dict)


def state_array_name(optimizer: str, position: int, variable: str | None = None) -> str:
    """Returns the name of an array of an optimizer's state.

    Args:
        optimizer: The optimizer's name.
        position: Which array of the state.
        variable: Name of the variable beside which it is on parameter servers, if it is there.
    """
    where = HERE if variable is None else f"{ON_SERVERS}/{variable}"
    return f"{optimizer}/{where}/{position}"


def canonical(contents: Any) -> bytes:
    """Returns the text of which the index notes the checksum."""
    return json.dumps(contents, sort_keys=True, separators=(",", ":")).encode("ascii")
