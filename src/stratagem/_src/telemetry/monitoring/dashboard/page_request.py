"""``PageRequest``: a parsed HTTP request to the dashboard."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from typing import Any, Protocol
from urllib.parse import parse_qs, urlsplit

__all__ = ["COOKIE", "LOGS_PATH", "STATE_PATH", "PageRequest"]

STATE_PATH = "/state"
LOGS_PATH = "/logs"
COOKIE = "stratagem_dashboard"
"""The start of the cookie's name, which ends with the port: browsers send all cookies to all ports."""
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
        keys: The keys in a header and in cookies, of which there is one for each job on this machine.
        fields: The fields of the query.
    """

    path: str
    host: str
    since: float = 0.0
    key_in_path: str | None = None
    keys: tuple[str, ...] = ()
    fields: Mapping[str, str] = field(default_factory=dict)

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
            tuple(_keys(headers)),
            {name: values[0] for name, values in query.items()},
        )


def _keys(headers: _Headers) -> Iterator[str]:
    authorization = headers.get("Authorization") or ""
    if authorization.startswith(_BEARER):
        yield authorization.removeprefix(_BEARER)
    with contextlib.suppress(CookieError):
        for name, morsel in SimpleCookie(headers.get("Cookie") or "").items():
            if name.startswith(COOKIE):
                yield morsel.value
