"""``Rendezvous``: where the nodes of a job meet."""

from __future__ import annotations

from dataclasses import dataclass

from stratagem._src.cluster.address import Address
from stratagem._src.cluster.errors import LaunchError
from stratagem._src.transport import Credentials, Identity

__all__ = ["HOST", "NODE_ROLE", "Rendezvous"]

HOST = Identity("rendezvous")
NODE_ROLE = "node"


@dataclass(frozen=True)
class Rendezvous:
    """Where the nodes of a job meet, and what they prove to each other.

    Raises:
        LaunchError: If the endpoint has no port, nobody could wait that long, or there is no secret.
    """

    endpoint: Address
    num_nodes: int
    node_rank: int
    timeout_seconds: float
    credentials: Credentials

    def __post_init__(self) -> None:
        if self.endpoint.port == 0:
            raise LaunchError(
                f"--rdzv-endpoint must have a port that every node knows, got {self.endpoint}."
            )
        if not self.timeout_seconds > 0:
            raise LaunchError(f"--rdzv-timeout must be positive, got {self.timeout_seconds}.")
        if self.credentials.secret is None:
            raise LaunchError("The nodes of a job must share a secret, got none.")

    @property
    def secret(self) -> str:
        """What the nodes share."""
        assert self.credentials.secret is not None
        return self.credentials.secret
