"""Finds the addresses of this machine for a host name, so that servers listen on no other interface.

A name often resolves differently on its own machine: Debian and Ubuntu write ``127.0.1.1 myhost`` into
``/etc/hosts``. If a name does not resolve to an address that other machines can reach, the routing table
gives the address from which this machine reaches them.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import struct
from collections.abc import Iterable, Iterator, Sequence

from stratagem._src.cluster.loopback import loopback_address

__all__ = [
    "ALL_INTERFACES",
    "addresses_of",
    "family_of",
    "is_outer_address",
    "is_own_address",
    "resolve",
]

ALL_INTERFACES = ""
_DOCUMENTATION_ADDRESSES = ("192.0.2.1", "2001:db8::1")
"""Addresses for documentation (RFC 5737, RFC 3849), which the default route matches."""

_DISCARD_PORT = 9
_GET_INTERFACE_ADDRESS = 0x8915  # SIOCGIFADDR of Linux
_ADDRESS_OFFSET = 20  # in struct ifreq: after the name (16), the family (2) and the port (2)


def addresses_of(host: str, peers: Iterable[str] = ()) -> tuple[str, ...]:
    """Returns the addresses to bind so that others reach this machine at ``host``, and nowhere else.

    >>> from stratagem._src.cluster.interfaces import addresses_of
    >>> addresses_of("localhost"), addresses_of("127.0.0.2")
    (('127.0.0.1',), ('127.0.0.2',))

    Args:
        host: An address of this machine: only that is bound. A name: the addresses to which it resolves
            here. If other machines can reach none of them, or the address does not belong to this machine
            because of NAT, also the address from which this machine reaches the peers. ``0.0.0.0`` or
            ``::``: all interfaces.
        peers: The hosts of the other tasks, if known; otherwise the default route decides.
    """
    loopback = loopback_address(host)
    if loopback is not None:
        return (loopback,)
    try:
        if ipaddress.ip_address(host).is_unspecified:
            return (ALL_INTERFACES,)
    except ValueError:
        pass  # a name
    own = tuple(address for address in resolve(host) if is_own_address(address))
    if any(map(is_outer_address, own)):
        return own
    outward = _towards(host, tuple(peers))
    return own if outward is None and own else (*own, outward or "127.0.0.1")


def resolve(host: str) -> list[str]:
    """Returns the addresses to which a host resolves here, IPv4 first; none if it does not resolve."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    addresses = dict.fromkeys(str(entry[4][0]) for entry in found)
    return sorted(addresses, key=lambda address: ":" in address)


def is_outer_address(address: str) -> bool:
    """Returns whether other machines could reach an address."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:  # with a scope, such as fe80::1%eth0
        return False
    return not (parsed.is_loopback or parsed.is_link_local or parsed.is_unspecified)


def is_own_address(address: str) -> bool:
    """Returns whether an address belongs to this machine, so that it can be bound."""
    with socket.socket(family_of(address), socket.SOCK_STREAM) as trial:
        try:
            trial.bind((address, 0))
        except OSError:
            return False
    return True


def family_of(address: str) -> socket.AddressFamily:
    """Returns the family of an address."""
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _towards(host: str, peers: Sequence[str]) -> str | None:
    """Returns the address from which this machine reaches the peers; ``None`` if all are here."""
    others = [each for each in dict.fromkeys(peers) if each != host]
    # A task that knows only itself may have peers on other machines.
    if len(peers) > 1 and all(map(_is_here, [host, *others])):
        return None
    remote = [address for each in (*others, host) for address in resolve(each)]
    for address in (*remote, *_DOCUMENTATION_ADDRESSES):
        source = _source_towards(address)
        if source is not None:
            return source
    return next(_interface_addresses(), None)


def _is_here(host: str) -> bool:
    addresses = resolve(host)
    return bool(addresses) and all(map(is_own_address, addresses))


def _source_towards(address: str) -> str | None:
    """Returns the source address of packets from this machine to another one; sends no packet."""
    with socket.socket(family_of(address), socket.SOCK_DGRAM) as route:
        try:
            route.connect((address, _DISCARD_PORT))
        except OSError:
            return None
        source = str(route.getsockname()[0])
    return source if is_outer_address(source) else None


def _interface_addresses() -> Iterator[str]:
    """Yields the IPv4 addresses of the interfaces, for a machine without a default route."""
    try:
        import fcntl
    except ImportError:
        return
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            with contextlib.suppress(OSError):
                answer = fcntl.ioctl(any_socket.fileno(), _GET_INTERFACE_ADDRESS, request)
                address = socket.inet_ntoa(answer[_ADDRESS_OFFSET : _ADDRESS_OFFSET + 4])
                if is_outer_address(address):
                    yield address
