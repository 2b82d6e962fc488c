"""``DashboardServer``: serves a web page that shows a running job, and its data as JSON."""

from __future__ import annotations

import importlib.resources
import socket
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler
from typing import Any, Self

from stratagem._src.cluster.address import Address
from stratagem._src.cluster.errors import LaunchError
from stratagem._src.cluster.loopback import loopback_address
from stratagem._src.process.background import Background
from stratagem._src.telemetry.monitoring.dashboard.page_access import PageAccess, with_key
from stratagem._src.telemetry.monitoring.dashboard.page_request import STATE_PATH, PageRequest
from stratagem._src.telemetry.monitoring.dashboard.page_server import PageServer
from stratagem._src.telemetry.monitoring.strict_json import strict_json

__all__ = ["DashboardServer"]

_SHUTDOWN_TIMEOUT = 5.0
_ALL_INTERFACES = ("0.0.0.0", "::", "")
_TEXT = "text/plain; charset=utf-8"
_PAGE = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
}
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'self'; img-src data:; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class DashboardServer:
    """Serves the read-only dashboard while entered.

    On loopback every user of this machine can see it. On other addresses a key is needed.

    Args:
        address: The address to listen on; port 0 chooses a free port.
        view: Returns the state of the job, and its history after a given time.
        key: The key that clients need if the address is not loopback.

    Attributes:
        is_local: Whether only this machine can reach it.

    Raises:
        LaunchError: If it cannot listen there.
    """

    def __init__(
        self, address: Address, view: Callable[[float], Mapping[str, Any]], key: str
    ) -> None:
        self.is_local = loopback_address(address.host) is not None
        self._key = None if self.is_local else key
        self._access = PageAccess(self._key)
        self._files = {path: (_read(name), kind) for path, (name, kind) in _PAGE.items()}
        self._view = view
        self._background = Background("the dashboard")
        try:
            self._server = PageServer(address, self._answer, self._background)
        except OSError as error:
            raise LaunchError(
                "--dashboard-address must be an address of this machine with a free port, got "
                f"{address} ({error.strerror or error})."
            ) from None
        host = socket.gethostname() if address.host in _ALL_INTERFACES else address.host
        self._address = Address(host, self._server.server_address[1])

    @property
    def link(self) -> str:
        """The link to open in a browser; with the key if one is needed."""
        return with_key(f"http://{self._address}/", self._key)

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        try:
            request = PageRequest.parse(handler.path, handler.headers)
        except ValueError:
            _send(handler, 400, b"This is not a URL of the dashboard.\n", _TEXT)
            return
        refusal = self._access.refuse(request)
        if refusal is not None:
            _send(handler, refusal.status, refusal.text.encode(), _TEXT)
        elif self._key is not None and request.key_in_path is not None:
            # Moves the key to a cookie, so that it does not stay in the browser's address bar and history.
            headers = {"Location": "/", "Set-Cookie": self._access.cookie()}
            _send(handler, 303, b"", "text/plain", headers)
        elif request.path == STATE_PATH:
            _send(handler, 200, strict_json(self._view(request.since)).encode(), "application/json")
        elif request.path in self._files:
            _send(handler, 200, *self._files[request.path])
        else:
            _send(handler, 404, b"There is no such page.\n", _TEXT)

    def __enter__(self) -> Self:
        self._background.start(self._server.serve_forever, name="dashboard-accept")
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._background.join(_SHUTDOWN_TIMEOUT)


def _read(name: str) -> bytes:
    return (importlib.resources.files(__package__) / "page" / name).read_bytes()


def _send(
    handler: BaseHTTPRequestHandler,
    status: int,
    body: bytes,
    kind: str,
    headers: Mapping[str, str] | None = None,
) -> None:
    handler.send_response(status)
    for name, value in {**_HEADERS, **(headers or {})}.items():
        handler.send_header(name, value)
    handler.send_header("Content-Type", kind)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)
