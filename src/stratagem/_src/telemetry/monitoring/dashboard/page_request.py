"""``PageRequest``: a parsed HTTP request to the dashboard."""

from __future__ import annotations

import math
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Any, Protocol
from urllib.parse import parse_qs, urlsplit

__all__ = ["COOKIE", "STATE_PATH", "PageRequest"]

STATE_PATH = "/state"
COOKIE = "stratagem_dashboard"
_BEARER = "Bearer "
_MAX_FIELDS = 16


class _Headers(Protocol):
    """The headers of a request; HTTP headers are case-insensitive."""

    def get(self, name: str, /) -> Any:
        """Returns a header, or ``None``."""


@dataclass(frozen=True)
class PageRequest:
    """A parsed request.

    >>> from stratagem._src.telemetry.monitoring.dashboard.page_request import PageRequest
    >>> request = PageRequest.parse("/state?since=12.5", {"Host": "127.0.0.1:8000"})
    >>> request.path, request.since, request.host
    ('/state', 12.5, '127.0.0.1')

    Attributes:
        path: The requested path.
        host: The host name in the ``Host`` header.
        since: The start time of the requested history.
        key_in_path: The key in the link, if any.
        key: The key in a cookie or header, if any.
    """

    path: str
    host: str
    since: float = 0.0
    key_in_path: str | None = None
    key: str | None = None

    @classmethod
    def parse(cls, target: str, headers: _Headers) -> PageRequest:
        """Parses the target and headers of a request.

        Raises:
            ValueError: If the target is not a URL, or has too many query fields.
        """
        parts = urlsplit(target)
        query = parse_qs(parts.query, max_num_fields=_MAX_FIELDS)
        try:
            host = urlsplit(f"//{headers.get('Host') or ''}").hostname or ""
        except ValueError:
            host = ""
        try:
            since = float(query.get("since", ["0"])[0])
        except ValueError:
            since = 0.0
        return cls(
            parts.path,
            host,
            since if math.isfinite(since) else 0.0,
            query.get("key", [None])[0],
            _key(headers),
        )


def _key(headers: _Headers) -> str | None:
    authorization = headers.get("Authorization") or ""
    if authorization.startswith(_BEARER):
        return authorization.removeprefix(_BEARER)
    try:
        morsel = SimpleCookie(headers.get("Cookie") or "").get(COOKIE)
    except CookieError:
        return None
    return None if morsel is None else morsel.value
