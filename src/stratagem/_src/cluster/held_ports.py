"""``HeldPorts``: free ports that nobody else is given."""

from __future__ import annotations

import contextlib
import itertools
import socket
import sys
from collections.abc import Iterator

from stratagem._src.cluster.interfaces import addresses_of, family_of
from stratagem._src.cluster.listening import bind_each

__all__ = ["HeldPorts"]


class HeldPorts:
    """Free ports of this machine, at the addresses of one host, held so that nobody else is given them.

    A held port is bound with ``SO_REUSEADDR`` and does not listen. Linux then gives it to no other
    socket that asks for any port, yet lets a server that sets ``SO_REUSEADDR`` too, as those of gRPC
    and Python do, listen on it. So there is no moment between finding a port and using it.

    >>> from stratagem._src.cluster.held_ports import HeldPorts
    >>> with HeldPorts(2) as ports:
    ...     len(set(ports))
    2

    Args:
        number: How many.
        host: By which others will reach what listens there.
    """

    def __init__(self, number: int, host: str = "localhost") -> None:
        addresses = addresses_of(host)
        with contextlib.ExitStack() as stack:
            self._held = [bind_each(addresses, 0, _hold) for _ in range(number)]
            for held in itertools.chain.from_iterable(self._held):
                stack.enter_context(held)
            self._close = stack.pop_all().close

    def __iter__(self) -> Iterator[int]:
        return (held[0].getsockname()[1] for held in self._held)

    def tasks_have_started(self) -> None:
        """Lets go of the ports where a task could not listen on them otherwise."""
        if sys.platform != "linux":
            self._close()

    def close(self) -> None:
        """Lets go of the ports."""
        self._close()

    def __enter__(self) -> HeldPorts:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _hold(address: str, port: int) -> socket.socket:
    held = socket.socket(family_of(address), socket.SOCK_STREAM)
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((address, port))
    except BaseException:
        held.close()
        raise
    return held
