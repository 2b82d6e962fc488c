"""``Rendezvous``: where the nodes of a job meet."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass, field

from stratagem.cluster.address import Address
from stratagem.cluster.errors import LaunchError

__all__ = ["Rendezvous", "watch_over"]

SECONDS_TO_SEND = 10.0


@dataclass(frozen=True)
class Rendezvous:
    """Where the nodes of a job meet, and what they prove to each other.

    Raises:
        LaunchError: If the endpoint has no port, or nobody could wait that long.
    """

    endpoint: Address
    num_nodes: int
    node_rank: int
    timeout_seconds: float
    secret: str = field(repr=False)

    def __post_init__(self) -> None:
        if self.endpoint.port == 0:
            raise LaunchError(
                f"--rdzv-endpoint must have a port that every node knows, got {self.endpoint}."
            )
        if not self.timeout_seconds > 0:
            raise LaunchError(f"--rdzv-timeout must be positive, got {self.timeout_seconds}.")

    @property
    def bind_host(self) -> str:
        """Where node 0 listens: on loopback if that is the endpoint, else on every interface.

        Not on the endpoint's own address, because a machine often takes its name for a loopback
        address that no other machine reaches.
        """
        host = self.endpoint.host
        try:
            is_loopback = ipaddress.ip_address(host).is_loopback
        except ValueError:
            is_loopback = host == "localhost"
        return host if is_loopback else ""


def watch_over(connection: socket.socket) -> None:
    """Has a machine that vanished noticed within about half a minute."""
    connection.settimeout(SECONDS_TO_SEND)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for option, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, option):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
