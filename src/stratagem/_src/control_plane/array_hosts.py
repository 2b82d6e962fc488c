"""At which address of its machine each worker listens for arrays: offers in, an address out.

The address comes from the cluster, never from the machine's own name. That name may resolve to a loopback
address (127.0.1.1 on Debian and Ubuntu), to another network than the cluster's, or not at all.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from stratagem._src.cluster.interfaces import is_outer_address, is_own_address, resolve
from stratagem._src.process.host_identity import boot_id

__all__ = ["HostOffer", "choose_host", "offer_of"]

LOOPBACK = "127.0.0.1"


class HostOffer(NamedTuple):
    """What a worker tells the others of the machine that it is on.

    Attributes:
        machine: Equal for workers that reach each other by loopback; empty where the system does not tell.
        addresses: Those at which it could listen for the others; empty if it knows none.
        server: The address at which it reaches the membership server.
    """

    machine: str
    addresses: tuple[str, ...]
    server: str

    @classmethod
    def from_json(cls, data: Any) -> HostOffer:
        """Returns the offer that travelled as a list."""
        machine, addresses, server = data
        return cls(str(machine), tuple(map(str, addresses)), str(server))


def offer_of(cluster_host: str | None, own: str, server: str) -> HostOffer:
    """Returns what this worker offers.

    Args:
        cluster_host: Its host in the cluster; ``None`` if the cluster does not say.
        own: The address of this machine on the connection to the membership server.
        server: The address of the other end of that.
    """
    found = [] if cluster_host is None else resolve(cluster_host)
    addresses = [
        address for address in found if is_outer_address(address) and is_own_address(address)
    ]
    # A name that other hosts resolve may mean loopback here, or a proxy in front of this host.
    if not addresses and is_outer_address(own):
        addresses = [own]
    return HostOffer(_machine(), tuple(addresses), server)


def choose_host(me: int, offers: Sequence[HostOffer], server_at: int) -> str | None:
    """Returns where worker ``me`` listens; ``None`` if nobody can tell.

    Workers of one machine use loopback, which nobody else reaches. Others use addresses of one family:
    connections between IPv4 and IPv6 are impossible.

    >>> a, b = HostOffer("a", ("10.0.0.1",), "10.0.0.1"), HostOffer("b", ("10.0.0.2",), "10.0.0.1")
    >>> choose_host(1, [a, b], server_at=0), choose_host(1, [a, a], server_at=0)
    ('10.0.0.2', '127.0.0.1')

    Args:
        me: The number of this worker.
        offers: Of all workers.
        server_at: The number of the worker on whose machine the membership server runs.
    """
    machines = {offer.machine for offer in offers}
    if len(machines) == 1 and "" not in machines:
        return LOOPBACK
    # The leader reaches its own server by loopback if its name resolves to that. Others know it better.
    seen = tuple(dict.fromkeys(offer.server for offer in offers if is_outer_address(offer.server)))
    addresses = [
        offer.addresses or (seen if offer.machine == offers[server_at].machine else ())
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
    """Tells machines apart, and on one of them those whose networks are apart."""
    try:
        network = os.readlink("/proc/self/ns/net")
    except OSError:
        return ""
    boot = boot_id()
    return f"{boot} {network}" if boot else ""
