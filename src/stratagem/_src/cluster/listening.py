"""Which interface a task listens on: the one of its address, where the machine knows it."""

from __future__ import annotations

import ipaddress
import socket

from stratagem._src.cluster.address import Address
from stratagem._src.cluster.loopback import loopback_address

__all__ = ["ALL_INTERFACES", "family_of", "interface_of", "is_own_address", "listen"]

ALL_INTERFACES = ""
_BACKLOG = 128


def interface_of(host: str) -> str:
    """Returns the address to bind so that others reach this machine by ``host``, and by nothing else.

    A name is bound on all interfaces: what it means here, ``127.0.1.1`` on some systems, is often not
    what it means elsewhere. So is an address that this machine does not have, because it is translated
    on the way.

    >>> from stratagem._src.cluster.listening import interface_of
    >>> interface_of("localhost"), interface_of("worker0.example.com"), interface_of("192.0.2.1")
    ('127.0.0.1', '', '')
    """
    loopback = loopback_address(host)
    if loopback is not None:
        return loopback
    try:
        is_unspecified = ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return ALL_INTERFACES
    return host if not is_unspecified and is_own_address(host) else ALL_INTERFACES


def listen(address: Address) -> socket.socket:
    """Returns a socket that listens at an address of this machine; port 0 for any that is free.

    Raises:
        OSError: If the port is in use or cannot be bound.
    """
    host = interface_of(address.host)
    if host == ALL_INTERFACES and socket.has_dualstack_ipv6():
        place, family, dual = (host, address.port), socket.AF_INET6, True
    else:
        place, family, dual = (host, address.port), family_of(host), False
    return socket.create_server(place, family=family, backlog=_BACKLOG, dualstack_ipv6=dual)


def family_of(host: str) -> socket.AddressFamily:
    """Returns the family of an address that ``interface_of`` returned."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def is_own_address(host: str) -> bool:
    """Returns whether an address is one of this machine's, so that it can be bound."""
    with socket.socket(family_of(host), socket.SOCK_STREAM) as trial:
        try:
            trial.bind((host, 0))
        except OSError:
            return False
    return True
