"""Chooses the address at which each worker listens for collectives: offers in, an address out.

The address comes from the cluster, never from the machine's hostname. That may resolve to a loopback
address (127.0.1.1 on Debian and Ubuntu), to another network than the cluster's, or not at all.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from stratagem._src.cluster.interfaces import is_outer_address, is_own_address, resolve
from stratagem._src.process.host_identity import boot_id

__all__ = ["HostOffer", "choose_host", "offer_of"]

LOOPBACK = "127.0.0.1"


class HostOffer(NamedTuple):
    """The addresses that a worker offers to the others.

    Attributes:
        machine: Equal for workers that reach each other over loopback; empty if unknown.
        addresses: The addresses at which it could listen; empty if it knows none.
        server: The address at which it reaches the membership server.
    """

    machine: str
    addresses: tuple[str, ...]
    server: str

    @classmethod
    def from_json(cls, data: Iterable[Any]) -> HostOffer:
        """Returns the offer that was sent as a list."""
        machine, addresses, server = data
        return cls(str(machine), tuple(map(str, addresses)), str(server))


def offer_of(cluster_host: str | None, own: str, server: str) -> HostOffer:
    """Returns the offer of this worker.

    Args:
        cluster_host: Its host in the cluster; ``None`` if unknown.
        own: The local address of the connection to the membership server.
        server: The remote address of that connection.
    """
    found = [] if cluster_host is None else resolve(cluster_host)
    addresses = [
        address for address in found if is_outer_address(address) and is_own_address(address)
    ]
    # A name that other hosts resolve may resolve to loopback here, or to a proxy in front of this host.
    if not addresses and is_outer_address(own):
        addresses = [own]
    return HostOffer(_machine(), tuple(addresses), server)


def choose_host(me: int, offers: Sequence[HostOffer], server_rank: int) -> str | None:
    """Returns the address at which worker ``me`` listens; ``None`` if it is unknown.

    Workers on one machine use loopback, which no other host can reach. Otherwise all use addresses of one
    family, because IPv4 and IPv6 hosts cannot connect to each other.

    >>> a, b = HostOffer("a", ("10.0.0.1",), "10.0.0.1"), HostOffer("b", ("10.0.0.2",), "10.0.0.1")
    >>> choose_host(1, [a, b], server_rank=0), choose_host(1, [a, a], server_rank=0)
    ('10.0.0.2', '127.0.0.1')

    Args:
        me: The rank of this worker.
        offers: The offers of all workers.
        server_rank: The rank of the worker on whose machine the membership server runs.
    """
    machines = {offer.machine for offer in offers}
    if len(machines) == 1 and "" not in machines:
        return LOOPBACK
    # The leader may reach its own server over loopback. The other workers know its external address.
    seen = tuple(dict.fromkeys(offer.server for offer in offers if is_outer_address(offer.server)))
    addresses = [
        offer.addresses or (seen if offer.machine == offers[server_rank].machine else ())
        for offer in offers
    ]
    for family in (4, 6):
        of_family = [[a for a in each if _version(a) == family] for each in addresses]
        if all(of_family):
            return of_family[me][0]
    return addresses[me][0] if addresses[me] else None


def _version(address: str) -> int:
    return ipaddress.ip_address(address).version


def _machine() -> str:
    """Returns an id of this machine and network namespace: processes with equal ids share loopback."""
    try:
        network = os.readlink("/proc/self/ns/net")
    except OSError:
        return ""
    boot = boot_id()
    return f"{boot} {network}" if boot else ""
