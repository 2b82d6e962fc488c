"""``PageServer``: an HTTP server for untrusted clients, with limits on time, size and concurrency."""

from __future__ import annotations

import io
import logging
import socket
import socketserver
import ssl
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from stratagem._src.cluster.address import Address
from stratagem._src.process.background import Background
from stratagem._src.transport.connection_limiter import ConnectionLimiter, ConnectionSlot
from stratagem._src.transport.rejection_log import RejectionLog

__all__ = ["PageServer"]

_log = logging.getLogger("stratagem")
_MAX_REQUESTS = 32
_MAX_REQUEST_BYTES = 64 * 1024
_REQUEST_TIMEOUT = 10.0
_MIN_TIMEOUT = 0.001  # zero would mean: do not wait at all


class PageServer(HTTPServer):
    """Answers each request in a background thread.

    A request has one deadline, from its first byte to the last byte of its response. A request that holds
    a slot while others wait may lose it (``ConnectionLimiter``).

    Args:
        address: The address to listen on.
        answer: Answers a GET request.
        background: The owner of the threads.
        tls: Encrypts the connections, if given.
    """

    def __init__(
        self,
        address: Address,
        answer: Callable[[BaseHTTPRequestHandler], None],
        background: Background,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._tls = tls
        self._background = background
        self._limiter = ConnectionLimiter(_MAX_REQUESTS)
        self._refusals = RejectionLog(_log)
        if ":" in address.host:
            self.address_family = socket.AF_INET6

        class Handler(_RequestHandler):
            def do_GET(self) -> None:
                answer(self)

        super().__init__((address.host, address.port), Handler)

    def server_bind(self) -> None:
        # HTTPServer's method resolves the name of this machine, which may take long.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]

    def process_request(self, request: Any, client_address: Any) -> None:
        slot = self._limiter.acquire(request, str(client_address[0]))
        if slot is None:
            self.shutdown_request(request)
            return
        try:
            self._background.start(self._serve, slot, client_address, name="dashboard-request")
        except RuntimeError as error:  # too many threads
            slot.release()
            self._refusals.note(slot.peer, str(error))
            self.shutdown_request(request)

    def server_close(self) -> None:
        super().server_close()
        self._refusals.close()

    def _serve(self, slot: ConnectionSlot, client_address: Any) -> None:
        try:
            if self._tls is not None:
                slot.connected = self._tls.wrap_socket(
                    slot.connected, server_side=True, do_handshake_on_connect=False
                )
            self.finish_request(slot.connected, client_address)
        except OSError:
            pass  # the peer left, or took too long
        except Exception as error:
            # A client may cause this as often as it likes, so there is no traceback for each error.
            self._refusals.note(slot.peer, f"{type(error).__name__}: {error!s:.200}")
        finally:
            self.shutdown_request(slot.connected)
            slot.release()


class _RequestHandler(BaseHTTPRequestHandler):
    """Reads the head of a request before parsing it, and answers within the same deadline."""

    timeout = _REQUEST_TIMEOUT
    server_version = "stratagem"
    sys_version = ""

    def setup(self) -> None:
        self._deadline = time.monotonic() + _REQUEST_TIMEOUT
        super().setup()
        self.rfile.close()
        if isinstance(self.connection, ssl.SSLSocket):
            self.connection.settimeout(_REQUEST_TIMEOUT)
            self.connection.do_handshake()
        # Python's socket timeout applies to each recv: a client that sends a byte now and then would
        # never exceed it.
        self.rfile = io.BytesIO(_read_head(self.connection, self._deadline))
        self.wfile = _DeadlineWriter(self.connection, self._deadline)

    def log_message(self, format: str, *args: Any) -> None:
        pass


class _DeadlineWriter(io.BufferedIOBase):
    """Sends written data until a deadline."""

    def __init__(self, connected: socket.socket, deadline: float) -> None:
        self._connected = connected
        self._deadline = deadline

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        # Not sendall, which would give each record of an encrypted connection the whole time.
        unsent = memoryview(data)
        while unsent:
            self._connected.settimeout(max(_MIN_TIMEOUT, self._deadline - time.monotonic()))
            unsent = unsent[self._connected.send(unsent) :]
        return len(data)


def _read_head(connected: socket.socket, deadline: float) -> bytes:
    head = bytearray()
    while len(head) <= _MAX_REQUEST_BYTES and b"\r\n\r\n" not in head and b"\n\n" not in head:
        connected.settimeout(max(_MIN_TIMEOUT, deadline - time.monotonic()))
        received = connected.recv(_MAX_REQUEST_BYTES)
        if not received:
            break
        head += received
    return bytes(head)
