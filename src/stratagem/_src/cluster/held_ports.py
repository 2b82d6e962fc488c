"""``HeldPorts``: free ports that nobody else is given."""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Iterator

from stratagem._src.cluster.listening import family_of, interface_of

__all__ = ["HeldPorts"]


class HeldPorts:
    """Free ports of one address of this machine, held so that nobody else is given them.

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
        interface = interface_of(host)
        with contextlib.ExitStack() as stack:
            self._sockets = [stack.enter_context(_hold(interface)) for _ in range(number)]
            self._close = stack.pop_all().close

    def __iter__(self) -> Iterator[int]:
        return (held.getsockname()[1] for held in self._sockets)

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


def _hold(interface: str) -> socket.socket:
    held = socket.socket(family_of(interface), socket.SOCK_STREAM)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind((interface, 0))
    return held
