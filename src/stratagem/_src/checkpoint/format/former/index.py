"""The index of a checkpoint: its arrays, and the optimizers that they belong to.

The index is JSON with a checksum.
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
        dtype: Name of its dtype.
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
        leaves: The name of each in the optimizer's state; ``None`` if it was not recorded.
        variables: The names in the checkpoint of the optimizer's variables, in its order; ``None`` for a
            variable that is not in the checkpoint; ``None`` instead of the tuple if it was not recorded.
    """

    arrays: tuple[str, ...]
    leaves: tuple[str, ...] | None = None
    variables: tuple[str | None, ...] | None = None


@dataclass(frozen=True, slots=True)
class SavedOptimizer:
    """The saved state of an optimizer.

    Attributes:
        here: Its state in the process that saved it; ``None`` before its first step.
        on_servers: Its state on parameter servers, by variable name.
    """

    here: SavedState | None = None
    on_servers: Mapping[str, SavedState] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CheckpointIndex:
    """The table of contents of a checkpoint.

    Attributes:
        arrays: All arrays, by name.
        optimizers: The optimizers, by name.
        of_workers: The worker-local arrays of workers other than the leader, by worker index; they replace
            the array with the same name.
    """

    arrays: Mapping[str, SavedArray]
    optimizers: Mapping[str, SavedOptimizer]
    of_workers: Mapping[int, Mapping[str, SavedArray]] = field(default_factory=dict)


def state_array_name(optimizer: str, position: int, variable: str | None = None) -> str:
    """Returns the name of an array of an optimizer's state.

    Args:
        optimizer: The optimizer's name.
        position: The index of the array in the state.
        variable: The variable it belongs to, if it is on parameter servers.
    """
    where = HERE if variable is None else f"{ON_SERVERS}/{variable}"
    return f"{optimizer}/{where}/{position}"


def canonical(contents: Any) -> bytes:
    """Returns the canonical text that the index's checksum is computed from."""
    return json.dumps(contents, sort_keys=True, separators=(",", ":")).encode("ascii")
