"""``Rendezvous``: the address and credentials with which the nodes of a job find each other."""

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
"""A launcher that sends no heartbeat for this many seconds counts as lost, with its node.

Workers count each other as lost after 8 s. Launchers wait longer, so that after a short network partition
the launchers of all nodes are still connected and can restart the job.
"""


@dataclass(frozen=True)
class Rendezvous:
    """The rendezvous of one node: the endpoint of node 0, this node's rank, and the credentials.

    Attributes:
        endpoint: Where node 0 listens.
        num_nodes: The number of nodes.
        node_rank: The rank of this node.
        timeout_seconds: How long nodes wait for each other.
        credentials: What they prove to each other.
        node_names: The names of nodes in messages; ``None`` for their ranks.
        own_host: The host at which other nodes reach this one; ``None`` for the local address of the
            connection to node 0.
        nodes_are_restarted: Whether a scheduler restarts a lost node.

    Raises:
        LaunchError: If the endpoint has no port, the timeout is not positive, or there is no secret.
    """

    endpoint: Address
    num_nodes: int
    node_rank: int
    timeout_seconds: float
    credentials: Credentials
    node_names: tuple[str, ...] | None = None
    own_host: str | None = None
    nodes_are_restarted: bool = False

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
        """Returns the name of a node in messages."""
        return f"node {node}" if self.node_names is None else self.node_names[node]

    @property
    def secret(self) -> str:
        """The secret that the nodes share."""
        assert self.credentials.secret is not None
        return self.credentials.secret
