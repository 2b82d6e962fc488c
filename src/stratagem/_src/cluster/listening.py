"""Listening sockets at all addresses of a host on this machine, with the same port."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Iterable, Sequence

from stratagem._src.cluster.address import Address
from stratagem._src.cluster.interfaces import ALL_INTERFACES, addresses_of, family_of

__all__ = ["bind_each", "listen"]

_BACKLOG = 128
_MAX_TRIES = 20


def listen(address: Address, peers: Iterable[str] = ()) -> list[socket.socket]:
    """Returns sockets that listen on an address of this machine; port 0 chooses a free port.

    There is one socket for each address of the host on this machine, all with the same port.

    Args:
        address: The address at which others reach this machine.
        peers: The hosts of the others; see ``addresses_of``.

    Raises:
        OSError: If the port is in use or cannot be bound.
    """

    def bind(host: str, port: int) -> socket.socket:
        if host == ALL_INTERFACES and socket.has_dualstack_ipv6():
            family, dual = socket.AF_INET6, True
        else:
            family, dual = family_of(host), False
        return socket.create_server(
            (host, port), family=family, backlog=_BACKLOG, dualstack_ipv6=dual
        )

    return bind_each(addresses_of(address.host, peers), address.port, bind)


def bind_each(
    addresses: Sequence[str], port: int, bind: Callable[[str, int], socket.socket]
) -> list[socket.socket]:
    """Returns a socket for each address, all with the same port.

    Args:
        addresses: Addresses of this machine.
        port: The port; 0 for one that is free at all of them.
        bind: Creates a socket for an address and a port.

    Raises:
        OSError: If the port is in use or cannot be bound.
    """
    for tries_left in reversed(range(_MAX_TRIES)):
        bound: list[socket.socket] = []
        try:
            for address in addresses:
                bound.append(bind(address, bound[0].getsockname()[1] if bound else port))
            return bound
        except BaseException as error:
            for each in bound:
                each.close()
            # The system chose a port that is free at the first address but not at another one.
            taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
            if not (taken and bound and port == 0 and tries_left):
                raise
    raise AssertionError("the last try raises")
