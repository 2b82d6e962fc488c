"""Local servers that speak cloud APIs."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest


@dataclass
class Request:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any


Route = Callable[[Request], tuple[int, Any]]


@dataclass
class StandIn:
    """A server on 127.0.0.1 that answers from its routes, and keeps what it was asked."""

    address: str = ""
    routes: dict[str, Route] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    token: str = "ya29.secret-of-the-machine"

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    def authorized(self, route: Route) -> Route:
        """A route that answers only to the machine's token."""

        def checked(request: Request) -> tuple[int, Any]:
            if request.headers.get("Authorization") == f"Bearer {self.token}":
                return route(request)
            message = "Request had invalid authentication credentials."
            return 401, {"error": {"code": 401, "message": message, "status": "UNAUTHENTICATED"}}

        return checked

    def answer(self, request: Request) -> tuple[int, Any]:
        self.requests.append(request)
        for pattern, route in self.routes.items():
            if re.fullmatch(pattern, f"{request.method} {request.path}"):
                return route(request)
        message = f"The resource '{request.path}' was not found"
        return 404, {"error": {"code": 404, "message": message, "status": "NOT_FOUND"}}


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    server_state = StandIn()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            length = int(self.headers.get("Content-Length", 0))
            body = json.loads(self.rfile.read(length)) if length else None
            query = dict(parse_qsl(parts.query))
            status, answer = server_state.answer(
                Request(self.command, parts.path, query, dict(self.headers), body)
            )
            data = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
            self.send_response(status)
            kind = "text/plain" if isinstance(answer, str) else "application/json"
            self.send_header("Content-Type", kind)
            if status in (301, 302):
                self.send_header("Location", answer)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_POST = do_GET  # noqa: N815

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        server_state.address = f"127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server_state
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def google(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """A stand-in that is also this machine's metadata server."""
    monkeypatch.setenv("GCE_METADATA_HOST", stand_in.address)
    facts: dict[str, Any] = {
        "project/project-id": "test-project",
        "instance/zone": "projects/123456/zones/us-central1-c",
        "instance/service-accounts/default/token": {
            "access_token": stand_in.token,
            "expires_in": 3599,
            "token_type": "Bearer",
        },
    }

    def metadata(request: Request) -> tuple[int, Any]:
        if request.headers.get("Metadata-Flavor") != "Google":
            return 403, "Missing Metadata-Flavor:Google header."
        path = request.path.removeprefix("/computeMetadata/v1/")
        return (200, facts[path]) if path in facts else (404, "not found")

    stand_in.routes["GET /computeMetadata/v1/.*"] = metadata
    return stand_in
