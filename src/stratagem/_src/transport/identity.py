"""``Identity``: the role and index of one end of a connection."""

from __future__ import annotations

import struct
import unicodedata
from dataclasses import dataclass
from typing import Self

from stratagem._src.core.errors import InvalidArgumentError

__all__ = ["IDENTITY_BYTES", "Identity"]

_MAX_ROLE_BYTES = 120
_MAX_INDEX = 2**32 - 1
_WIRE = struct.Struct(f"<I{_MAX_ROLE_BYTES}s")
IDENTITY_BYTES = _WIRE.size
_JOB = "/job:"


@dataclass(frozen=True)
class Identity:
    """A role, and an index among the tasks with that role.

    Any holder of the secret can claim any identity. Identities separate the connections of honest tasks: a
    handshake with one task cannot be relayed to another.

    >>> from stratagem._src.transport import Identity
    >>> print(Identity.of_task("ps", 0), Identity("coordinator"), Identity("node", 3))
    /job:ps/task:0 coordinator:0 node:3

    Args:
        role: The role. Tasks of a cluster have the role of their job, from ``of_task``.
        index: The index within the role.

    Raises:
        InvalidArgumentError: If the role has more than 120 bytes or the index more than 32 bits.
    """

    role: str
    index: int = 0

    def __post_init__(self) -> None:
        size = len(self.role.encode(errors="replace"))
        is_text = not any(c == "\0" or unicodedata.category(c) == "Cs" for c in self.role)
        if not 0 < size <= _MAX_ROLE_BYTES or not is_text:
            raise InvalidArgumentError(
                f"The name of a job or role must have 1 to {_MAX_ROLE_BYTES - len(_JOB)} bytes in "
                f"UTF-8, none of them 0, got {self.role.removeprefix(_JOB)!r}."
            )
        if not 0 <= self.index <= _MAX_INDEX:
            raise InvalidArgumentError(
                f"An index must be from 0 to {_MAX_INDEX}, got {self.index}."
            )

    @classmethod
    def of_task(cls, job: str, index: int) -> Self:
        """Returns the identity of a task of a cluster."""
        return cls(_JOB + job, index)

    def to_bytes(self) -> bytes:
        """Serializes the identity to ``IDENTITY_BYTES`` bytes."""
        return _WIRE.pack(self.index, self.role.encode())

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Parses the output of ``to_bytes``.

        Raises:
            ValueError: If the data is not a valid identity.
        """
        index, role = _WIRE.unpack(data)
        return cls(role.rstrip(b"\0").decode(), index)

    def __str__(self) -> str:
        if self.role.startswith(_JOB):
            return f"{self.role}/task:{self.index}"
        return f"{self.role}:{self.index}"
