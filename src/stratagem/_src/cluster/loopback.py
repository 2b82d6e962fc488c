"""``loopback_address``: recognizes hosts that only this machine can reach."""

from __future__ import annotations

import ipaddress

__all__ = ["loopback_address"]


def loopback_address(host: str) -> str | None:
    """Returns the loopback address of a host, or ``None`` if it is not a loopback host.

    >>> from stratagem._src.cluster.loopback import loopback_address
    >>> loopback_address("localhost"), loopback_address("worker0.example.com")
    ('127.0.0.1', None)
    """
    if host == "localhost":
        return "127.0.0.1"
    try:
        return host if ipaddress.ip_address(host).is_loopback else None
    except ValueError:
        return None
