"""``Rendezvous``: where the nodes of a job meet."""

from __future__ import annotations

from dataclasses import dataclass

from stratagem._src.cluster.address import Address
from stratagem._src.cluster.errors import LaunchError
from stratagem._src.transport import Credentials, Identity

__all__ = ["HEARTBEAT_SECONDS", "HEARTBEAT_TIMEOUT", "HOST", "NODE_ROLE", "Rendezvous"]

HOST = Identity("rendezvous")
NODE_ROLE = "node"

HEARTBEAT_SECONDS = 2.0
HEARTBEAT_TIMEOUT = 20.0
"""A launcher that is silent for so long is lost, with its node.

Workers take each other for lost after 8 s. Launchers wait longer, so that after a short partition those
of all nodes are still there to start the job again.
"""


@dataclass(frozen=True)
class Rendezvous:
    """Where the nodes of a job meet, and what they prove to each other.

    Attributes:
        endpoint: Where node 0 listens.
        num_nodes: How many nodes there are.
        node_rank: Which of them this is.
        timeout_seconds: How long nodes wait for each other.
        credentials: What they prove to each other.
        node_names: What nodes are called in messages; ``None`` for their numbers.
        own_host: The host by which other nodes reach this one; ``None`` for that of the connection
            to node 0.
        nodes_come_back: Whether somebody starts a lost node again.

    Raises:
        LaunchError: If the endpoint has no port, nobody could wait that long, or there is no secret.
    """

    endpoint: Address
    num_nodes: int
    node_rank: int
    timeout_seconds: float
    credentials: Credentials
    node_names: tuple[str, ...] | None = None
    own_host: str | None = None
    nodes_come_back: bool = False

    def __post_init__(self) -> None:
        if self.endpoint.port == 0:
            raise LaunchError(
                f"--rdzv-endpoint must have a port that every node knows, got {self.endpoint}."
            )
        if not self.timeout_seconds > 0:
            raise LaunchError(f"--rdzv-timeout must be positive, got {self.timeout_seconds}.")
        if self.credentials.secret is None:
            raise LaunchError("The nodes of a job must share a secret, got none.")

    def name_of_node(self, node: int) -> str:
        """Returns what a node is called in messages."""
        return f"node {node}" if self.node_names is None else self.node_names[node]

    @property
    def secret(self) -> str:
        """What the nodes share."""
        assert self.credentials.secret is not None
        return self.credentials.secret
