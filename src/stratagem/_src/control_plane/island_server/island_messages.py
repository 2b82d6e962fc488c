"""What islands and their server say to each other, and where islands find it."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

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
    """Which island this process belongs to.

    Attributes:
        island: Its number, from 0.
        num_islands: How many islands there are.
        server: ``host:port`` of the server of the islands; ``None`` for one that is alone.
    """

    island: int = 0
    num_islands: int = 1
    server: str | None = None

    @classmethod
    def from_environment(cls) -> IslandPlace:
        """Returns what the environment says; without any of its variables, one island alone.

        Raises:
            EnvironmentVariableError: If a variable is missing or holds something else.
        """
        if not any(map(is_set, (ISLAND_VARIABLE, COUNT_VARIABLE, SERVER_VARIABLE))):
            return cls()
        number = read_integer(COUNT_VARIABLE, "the number of islands", _FIX, minimum=1)
        island = read_integer(ISLAND_VARIABLE, "the number of this island", _FIX, below=number)
        server = read_address(SERVER_VARIABLE, "the address of the server of the islands", _FIX)
        return cls(island, number, server)


def island_credentials() -> Credentials:
    """Returns what islands and their server prove to each other.

    It is the secret that islands of different clusters share, in ``STRATAGEM_ISLANDS_SECRET`` or the file
    that ``STRATAGEM_ISLANDS_SECRET_FILE`` names, or else the secret of the cluster; and TLS files as
    everywhere.

    Raises:
        EnvironmentVariableError: If what is set cannot be used.
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


def with_body(body: dict[str, Any], arrays: Any = ()) -> Message:
    """Returns a message with plain data and arrays."""
    return Message(json.dumps(body).encode(), tuple(arrays))


def read_body(message: Message) -> dict[str, Any]:
    """Returns the plain data of a message."""
    body: dict[str, Any] = json.loads(message.body)
    return body
