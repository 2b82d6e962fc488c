"""``Relay``: keeps JAX from noticing that its coordination service is gone.

JAX's client ends the process when its connection to the service breaks. Connected to a relay in its
own process it just hears no more, and the error is ours to raise.
"""

from __future__ import annotations

import contextlib
import socket
import threading

__all__ = ["Relay"]

_CHUNK = 65536


class Relay:
    """Passes connections to a local port on to an address.

    Args:
        host: Of the service.
        port: Of the service.
    """

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        # Kept, so that they stay open when the service has gone.
        self._connections: list[socket.socket] = []
        threading.Thread(target=self._accept, name="workers-relay", daemon=True).start()

    @property
    def address(self) -> str:
        """Where JAX's client should connect to."""
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            self._connections.append(client)
            with contextlib.suppress(OSError):
                service = socket.create_connection(self._target, timeout=60)
                service.settimeout(None)
                for end in (client, service):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                for ends in ((client, service), (service, client)):
                    threading.Thread(
                        target=_pass_on, args=ends, name="workers-relay", daemon=True
                    ).start()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(_CHUNK):
            target.sendall(data)
