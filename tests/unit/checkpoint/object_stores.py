"""Object stores on loopback, behind a proxy that throttles and cuts connections."""

from __future__ import annotations

import http.client
import http.server
import logging
import threading
import urllib.request
from collections.abc import Callable
from typing import NamedTuple

BUCKET = "bucket"


class Fault(NamedTuple):
    """What the proxy does to a request: answer with a status, or cut the connection.

    Attributes:
        status: The status of the answer; 0 cuts the connection.
        is_passed_on: Whether the server gets the request all the same: only its answer is lost.
    """

    status: int = 0
    is_passed_on: bool = False


class FaultyProxy:
    """Passes requests on to a server; ``fault`` may choose what happens to one instead.

    Attributes:
        fault: Called with method and path of each request.
        requests: The requests so far.
    """

    def __init__(self, port: int) -> None:
        self.fault: Callable[[str, str], Fault | None] = lambda method, path: None
        self.requests: list[tuple[str, str]] = []
        proxy = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *words):
                pass

            def handle_one_request(self):
                try:
                    super().handle_one_request()
                except (ConnectionError, ValueError):  # the client has given up
                    self.close_connection = True

            def answer(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                proxy.requests.append((self.command, self.path))
                fault = proxy.fault(self.command, self.path)
                status, headers, data = 0, [], b""
                if fault is None or fault.is_passed_on:
                    there = http.client.HTTPConnection("127.0.0.1", port)
                    there.request(self.command, self.path, body, dict(self.headers))
                    found = there.getresponse()
                    status, headers, data = found.status, found.getheaders(), found.read()
                    there.close()
                if fault is not None:
                    status, headers, data = fault.status, [], b""
                if not status:
                    self.close_connection = True
                    return
                self.send_response_only(status)
                for name, value in headers:
                    if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                        self.send_header(name, value)
                if self.command == "HEAD":
                    length = dict(headers).get("Content-Length", "0")
                else:
                    length = str(len(data))
                self.send_header("Content-Length", length)
                self.send_header("Connection", "close")  # so that its thread ends
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = do_PATCH = answer  # noqa: N815

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        """Ends it."""
        self._server.shutdown()
        self._server.server_close()


def google_storage() -> tuple[FaultyProxy, Callable[[], None]]:
    """Starts an emulator of Google Cloud Storage; returns its proxy and what ends it."""
    from gcp_storage_emulator.server import create_server

    logging.getLogger("gcp_storage_emulator").setLevel(logging.CRITICAL)
    server = create_server("127.0.0.1", 0, in_memory=True, default_bucket=BUCKET)
    server.start()
    proxy = FaultyProxy(server._api._httpd.server_port)

    def close() -> None:
        proxy.close()
        server.stop()

    return proxy, close


def amazon_storage() -> tuple[FaultyProxy, Callable[[], None]]:
    """Starts moto's S3 server; returns its proxy and what ends it."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/{BUCKET}", method="PUT")
    urllib.request.urlopen(request).close()
    proxy = FaultyProxy(port)

    def close() -> None:
        proxy.close()
        server.stop()

    return proxy, close
