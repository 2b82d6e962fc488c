"""``HeldPorts``: free ports that nobody else is given."""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Iterator

__all__ = ["HeldPorts"]


class HeldPorts:
    """Free ports of this machine, held so that nobody else is given them.

    A held port is bound with ``SO_REUSEADDR`` and does not listen. Linux then gives it to no other
    socket that asks for any port, yet lets a server that sets ``SO_REUSEADDR`` too, as those of gRPC
    and Python do, listen on it. So there is no moment between finding a port and using it.

    >>> from stratagem._src.cluster.held_ports import HeldPorts
    >>> with HeldPorts(2) as ports:
    ...     len(set(ports))
    2
    """

    def __init__(self, number: int) -> None:
        with contextlib.ExitStack() as stack:
            self._sockets = [stack.enter_context(_hold()) for _ in range(number)]
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


def _hold() -> socket.socket:
    held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("", 0))
    return held
