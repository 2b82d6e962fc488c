"""Access control of the dashboard."""

from __future__ import annotations

import hmac
from typing import NamedTuple

from stratagem._src.cluster.loopback import loopback_address
from stratagem._src.telemetry.monitoring.dashboard.page_request import COOKIE, PageRequest

__all__ = ["PageAccess", "Refusal", "with_key"]

_NOT_HERE = "The dashboard is at 127.0.0.1 or localhost. Open it under one of these names.\n"
_NO_KEY = "This dashboard needs a key. Open the link that 'stratagem run' printed.\n"


class Refusal(NamedTuple):
    """The HTTP status and text of a rejected request."""

    status: int
    text: str


class PageAccess:
    """Decides whether a request may see the page.

    Args:
        key: The key that a request must have; ``None`` on loopback, where every request may see the page
            whose ``Host`` is a loopback name. That rejects DNS rebinding: a foreign page whose own name
            resolves to this machine.
    """

    def __init__(self, key: str | None) -> None:
        self._key = key

    def refuse(self, request: PageRequest) -> Refusal | None:
        """Returns the reason to reject a request, or ``None``."""
        if self._key is None:
            is_local = bool(request.host) and loopback_address(request.host) is not None
            return None if is_local else Refusal(421, _NOT_HERE)
        given = request.key_in_path or request.key or ""
        is_known = hmac.compare_digest(given.encode(errors="replace"), self._key.encode())
        return None if is_known else Refusal(401, _NO_KEY)

    def cookie(self) -> str:
        """Returns the cookie that replaces the key in the link."""
        return f"{COOKIE}={self._key}; HttpOnly; SameSite=Strict; Path=/"


def with_key(link: str, key: str | None) -> str:
    """Returns a link with the key that it needs."""
    return link if key is None else f"{link}?key={key}"
