"""``OuterState``: the state that all islands share after each outer step."""

from __future__ import annotations

import dataclasses
import zlib
from typing import Any

import numpy as np

__all__ = ["OuterState"]

Array = np.ndarray[Any, Any]


@dataclasses.dataclass(frozen=True)
class OuterState:
    """The global parameters and the outer optimizer's state, on the host. Its arrays are never modified.

    Attributes:
        round: Number of outer steps so far.
        num_steps: Number of inner steps so far.
        parameters: The global parameters.
        optimizer: The leaves of the outer optimizer's state.
    """

    round: int
    num_steps: int
    parameters: tuple[Array, ...]
    optimizer: tuple[Array, ...]

    @property
    def arrays(self) -> tuple[Array, ...]:
        """All arrays, in wire order."""
        return self.parameters + self.optimizer

    def digest(self) -> str:
        """Returns a checksum, equal in islands with the same state."""
        checksum = zlib.crc32(str(self.num_steps).encode())
        for array in self.arrays:
            checksum = zlib.crc32(np.ascontiguousarray(array).view(np.uint8).data, checksum)
        return f"{checksum:08x}"

    def with_arrays(self, round: int, num_steps: int, arrays: tuple[Array, ...]) -> OuterState:
        """Returns a state of the same structure from arrays in wire order."""
        number = len(self.parameters)
        return OuterState(round, num_steps, arrays[:number], arrays[number:])
