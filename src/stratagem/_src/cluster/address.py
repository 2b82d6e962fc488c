"""``Address``: the host and port of a task."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Self

from stratagem._src.cluster.errors import ClusterSpecError

__all__ = ["Address"]

_MAX_PORT = 65535
_HOST_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_.])?")


@dataclass(frozen=True)
class Address:
    """A host and a port, written ``host:port``, with IPv6 hosts in brackets.

    Port 0 means that the operating system chooses a port when the task starts.

    >>> from stratagem._src.cluster import Address
    >>> Address.parse("worker0.example.com:2222")
    Address(host='worker0.example.com', port=2222)
    >>> str(Address("2001:db8::7", 2222))
    '[2001:db8::7]:2222'

    Raises:
        ClusterSpecError: If the host or the port is malformed.
    """

    host: str
    port: int

    def __post_init__(self) -> None:
        if not 0 <= self.port <= _MAX_PORT:
            raise ClusterSpecError(
                f"A port must be a whole number from 0 to {_MAX_PORT}, got {self.port}."
            )
        if not (_HOST_NAME.fullmatch(self.host) or _is_ipv6(self.host)):
            raise ClusterSpecError(
                f"A host must be a name, an IPv4 or an IPv6 address, got {self.host!r}."
            )

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parses an address of the form ``host:port`` or ``[ipv6]:port``."""
        if "://" in text:
            raise ClusterSpecError(
                f"An address must be host:port without a protocol, got {text!r}. "
                f"Use {text.split('://', 1)[1]!r}."
            )
        host, colon, port = text.rpartition(":")
        if not colon or not (port.isascii() and port.isdigit()):
            raise ClusterSpecError(f"An address must be host:port, got {text!r}.")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
            if not _is_ipv6(host):
                raise ClusterSpecError(
                    f"Brackets must hold an IPv6 address, got {text!r}. "
                    "Write names and IPv4 addresses without them."
                )
        elif ":" in host:
            raise ClusterSpecError(
                f"An IPv6 address needs brackets around the host, got {text!r}. "
                f"Use '[{host}]:{port}', or give the port if this is the host alone."
            )
        try:
            return cls(host, int(port))
        except (ClusterSpecError, ValueError) as error:
            raise ClusterSpecError(f"An address must be host:port, got {text!r}. {error}") from None

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _is_ipv6(host: str) -> bool:
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return True
