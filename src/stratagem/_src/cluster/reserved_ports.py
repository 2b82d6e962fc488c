"""``ReservedPorts``: free ports that the kernel assigns to no other process."""

from __future__ import annotations

import contextlib
import itertools
import socket
import sys
from collections.abc import Iterator

from stratagem._src.cluster.interfaces import addresses_of, family_of
from stratagem._src.cluster.listening import bind_each

__all__ = ["ReservedPorts"]


class ReservedPorts:
    """Reserves free ports of this machine, at the addresses of one host.

    A reserved port is bound with ``SO_REUSEADDR`` and does not listen. Linux then assigns it to no other
    socket that binds to port 0, but lets a server that also sets ``SO_REUSEADDR``, as gRPC and Python do,
    listen on it. So there is no race between finding a port and using it.

    >>> from stratagem._src.cluster.reserved_ports import ReservedPorts
    >>> with ReservedPorts(2) as ports:
    ...     len(set(ports))
    2

    Args:
        number: How many ports to reserve.
        host: The host at which other processes will reach the servers on these ports.
    """

    def __init__(self, number: int, host: str = "localhost") -> None:
        addresses = addresses_of(host)
        with contextlib.ExitStack() as stack:
            self._sockets = [bind_each(addresses, 0, _reserve) for _ in range(number)]
            for reserved in itertools.chain.from_iterable(self._sockets):
                stack.enter_context(reserved)
            self._close = stack.pop_all().close

    def __iter__(self) -> Iterator[int]:
        return (reserved[0].getsockname()[1] for reserved in self._sockets)

    def release_if_exclusive(self) -> None:
        """Releases the ports on systems where a task cannot listen on a reserved port."""
        if sys.platform != "linux":
            self._close()

    def close(self) -> None:
        """Releases the ports."""
        self._close()

    def __enter__(self) -> ReservedPorts:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _reserve(address: str, port: int) -> socket.socket:
    reserved = socket.socket(family_of(address), socket.SOCK_STREAM)
    try:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind((address, port))
    except BaseException:
        reserved.close()
        raise
    return reserved
