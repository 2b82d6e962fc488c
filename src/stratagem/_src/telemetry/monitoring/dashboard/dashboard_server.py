"""``DashboardServer``: serves a web page that shows a running job, and its data as JSON."""

from __future__ import annotations

import hmac
import importlib.resources
import socket
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler
from typing import Any, NamedTuple, Self

from stratagem._src.cluster.address import Address
from stratagem._src.cluster.errors import LaunchError
from stratagem._src.cluster.loopback import loopback_address
from stratagem._src.process.background import Background
from stratagem._src.telemetry.monitoring.dashboard.page_certificate import PageCertificate
from stratagem._src.telemetry.monitoring.dashboard.page_request import (
    COOKIE,
    LOGS_PATH,
    STATE_PATH,
    PageRequest,
)
from stratagem._src.telemetry.monitoring.dashboard.page_server import PageServer
from stratagem._src.telemetry.monitoring.strict_json import strict_json
from stratagem._src.telemetry.monitoring.task_logs import LogQuery

__all__ = ["DashboardServer", "PageAccess"]


_NOT_HERE = "The dashboard is at 127.0.0.1 or localhost. Open it under one of these names.\n"
_NO_KEY = "This dashboard needs a key. Open the link that 'stratagem run' printed.\n"
_NO_KEY_FOR_LOGS = "Logs need a key. Open the link that 'stratagem run' printed.\n"
_NO_LOGS = "There are no logs: they are shown while a job runs.\n"

_SHUTDOWN_TIMEOUT = 5.0
_ALL_INTERFACES = ("0.0.0.0", "::", "")
_TEXT = "text/plain; charset=utf-8"
_PAGE = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/charts.js": ("charts.js", "text/javascript; charset=utf-8"),
    "/logs.js": ("logs.js", "text/javascript; charset=utf-8"),
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

    On loopback every user of this machine can see the page without the output of the tasks. That output
    needs the key in the link, and on other addresses everything does.

    Args:
        address: The address to listen on; port 0 chooses a free port.
        view: Returns the state of the job, and its history after a given time.
        key: The key in the link; empty if the page is local and shows no logs.
        find_logs: Finds lines that tasks have printed, if the page shows them.
        certificate: Serves the page over HTTPS, if given.

    Attributes:
        is_local: Whether only this machine can reach it.

    Raises:
        LaunchError: If it cannot listen there.
    """

    def __init__(
        self,
        address: Address,
        view: Callable[[float], Mapping[str, Any]],
        key: str,
        find_logs: Callable[[LogQuery], Mapping[str, Any]] | None = None,
        certificate: PageCertificate | None = None,
    ) -> None:
        self.is_local = loopback_address(address.host) is not None
        self._key = key
        self._find_logs = find_logs
        self._scheme = "http" if certificate is None else "https"
        tls = None if certificate is None else certificate.server_context()
        self._files = {path: (_read(name), kind) for path, (name, kind) in _PAGE.items()}
        self._view = view
        self._background = Background("the dashboard")
        try:
            self._server = PageServer(address, self._answer, self._background, tls)
        except OSError as error:
            raise LaunchError(
                "--dashboard-address must be an address of this machine with a free port, got "
                f"{address} ({error.strerror or error})."
            ) from None
        host = socket.gethostname() if address.host in _ALL_INTERFACES else address.host
        self._address = Address(host, self._server.server_address[1])
        self._access = PageAccess(
            key, self._address.port, is_local=self.is_local, is_encrypted=tls is not None
        )

    @property
    def link(self) -> str:
        """The link to open in a browser, with the key."""
        return f"{self._scheme}://{self._address}/" + (f"?key={self._key}" if self._key else "")

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        try:
            request = PageRequest.parse(handler.path, handler.headers)
        except ValueError:
            _send(handler, 400, b"This is not a URL of the dashboard.\n", _TEXT)
            return
        refusal = self._access.refuse(request)
        if refusal is not None:
            _send(handler, refusal.status, refusal.text.encode(), _TEXT)
        elif request.key_in_path is not None and self._access.has_key(request):
            # Moves the key to a cookie, so that it does not stay in the browser's address bar and history.
            headers = {"Location": "/", "Set-Cookie": self._access.cookie()}
            _send(handler, 303, b"", "text/plain", headers)
        elif request.path == STATE_PATH:
            _send(handler, 200, strict_json(self._view(request.since)).encode(), "application/json")
        elif request.path == LOGS_PATH:
            self._answer_logs(handler, request)
        elif request.path in self._files:
            _send(handler, 200, *self._files[request.path])
        else:
            _send(handler, 404, b"There is no such page.\n", _TEXT)

    def _answer_logs(self, handler: BaseHTTPRequestHandler, request: PageRequest) -> None:
        if self._find_logs is None:
            _send(handler, 404, _NO_LOGS.encode(), _TEXT)
        elif not self._access.has_key(request):
            _send(handler, 401, _NO_KEY_FOR_LOGS.encode(), _TEXT)
        else:
            found = self._find_logs(LogQuery.parse(request.fields))
            _send(handler, 200, strict_json(found).encode(), "application/json")

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


class _Refusal(NamedTuple):
    """The HTTP status and text of a rejected request."""

    status: int
    text: str


class PageAccess:
    """Decides whether a request may see the page.

    Args:
        key: The key in the link.
        port: The port of the page.
        is_local: Whether the page is on loopback. There every request may see it whose ``Host`` is a
            loopback name. That rejects DNS rebinding: a foreign page whose name resolves to this machine.
        is_encrypted: Whether the page is served over HTTPS.
    """

    def __init__(self, key: str, port: int, *, is_local: bool, is_encrypted: bool = False) -> None:
        self._suffix = "; Secure" if is_encrypted else ""
        self._key = key
        self._port = port
        self._is_local = is_local

    def refuse(self, request: PageRequest) -> _Refusal | None:
        """Returns the reason to reject a request, or ``None``."""
        if self._is_local:
            is_local = bool(request.host) and loopback_address(request.host) is not None
            return None if is_local else _Refusal(421, _NOT_HERE)
        return None if self.has_key(request) else _Refusal(401, _NO_KEY)

    def has_key(self, request: PageRequest) -> bool:
        """Returns whether a request has the key, in the link, a header or a cookie."""
        given = request.keys if request.key_in_path is None else (request.key_in_path,)
        return bool(self._key) and any(
            hmac.compare_digest(key.encode(errors="replace"), self._key.encode()) for key in given
        )

    def cookie(self) -> str:
        """Returns the cookie that replaces the key in the link."""
        return f"{COOKIE}_{self._port}={self._key}; HttpOnly; SameSite=Strict; Path=/{self._suffix}"
