"""Messages between islands and their server, and the environment variables that configure islands."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from typing import Any

import numpy as np

from stratagem._src.cluster.environment_variables import is_set, read_address, read_integer
from stratagem._src.transport import Credentials, Identity, Message
from stratagem._src.transport.secret import read_secret

__all__ = [
    "COUNT_VARIABLE",
    "ISLAND_VARIABLE",
    "SECRET_FILE_VARIABLE",
    "SECRET_VARIABLE",
    "SERVER",
    "SERVER_VARIABLE",
    "IslandPlace",
    "island_credentials",
    "read_body",
    "read_island_secret",
    "with_body",
]

ISLAND_VARIABLE = "STRATAGEM_ISLAND"
COUNT_VARIABLE = "STRATAGEM_ISLANDS"
SERVER_VARIABLE = "STRATAGEM_ISLANDS_SERVER"
SECRET_VARIABLE = "STRATAGEM_ISLANDS_SECRET"
SECRET_FILE_VARIABLE = "STRATAGEM_ISLANDS_SECRET_FILE"
SERVER = Identity("island-server")
_FIX = (
    "'stratagem run --islands N' sets it; elsewhere set it in every task of the island, see the page "
    "about islands."
)


@dataclasses.dataclass(frozen=True)
class IslandPlace:
    """The island that this process belongs to.

    Attributes:
        island: The index of the island.
        num_islands: The number of islands.
        server: ``host:port`` of the island server; ``None`` for a single island.
    """

    island: int = 0
    num_islands: int = 1
    server: str | None = None

    @classmethod
    def from_environment(cls) -> IslandPlace:
        """Reads the island from the environment; a single island if none of the variables is set.

        Raises:
            EnvironmentVariableError: If a variable is missing or invalid.
        """
        if not any(map(is_set, (ISLAND_VARIABLE, COUNT_VARIABLE, SERVER_VARIABLE))):
            return cls()
        number = read_integer(COUNT_VARIABLE, "the number of islands", _FIX, minimum=1)
        island = read_integer(ISLAND_VARIABLE, "the number of this island", _FIX, below=number)
        server = read_address(SERVER_VARIABLE, "the address of the server of the islands", _FIX)
        return cls(island, number, server)


def island_credentials() -> Credentials:
    """Returns the credentials of the islands and their server.

    The secret is the one that islands of different clusters share, in ``STRATAGEM_ISLANDS_SECRET`` or the
    file named by ``STRATAGEM_ISLANDS_SECRET_FILE``, or else the cluster secret. The TLS files are those of
    the cluster.

    Raises:
        EnvironmentVariableError: If a variable is invalid.
    """
    credentials = Credentials.from_environment()
    if not (is_set(SECRET_VARIABLE) or is_set(SECRET_FILE_VARIABLE)):
        return credentials
    return dataclasses.replace(credentials, secret=read_island_secret())


def read_island_secret() -> str:
    """Returns the secret that islands of different clusters share.

    Raises:
        EnvironmentVariableError: If there is none, its file cannot be read, or it is too short.
    """
    return read_secret(SECRET_VARIABLE, SECRET_FILE_VARIABLE, "the secret that all islands share")


def with_body(body: dict[str, Any], arrays: Iterable[np.ndarray[Any, Any]] = ()) -> Message:
    """Returns a message with plain data and arrays."""
    return Message(json.dumps(body).encode(), tuple(arrays))


def read_body(message: Message) -> dict[str, Any]:
    """Returns the plain data of a message."""
    body: dict[str, Any] = json.loads(message.body)
    return body
