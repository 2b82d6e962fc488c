"""``DashboardClient``: fetches the view of a job from its dashboard."""

from __future__ import annotations

import collections
import http.client
import json
import ssl
import urllib.error
import urllib.request
from typing import IO, Any
from urllib.parse import SplitResult, parse_qs, urlsplit

from stratagem._src.cluster.errors import LaunchError
from stratagem._src.core.errors import UnavailableError
from stratagem._src.telemetry.monitoring.dashboard.page_request import STATE_PATH

__all__ = ["DashboardClient"]

_RESPONSE_TIMEOUT = 10.0
_MAX_NOTES = 100
_MAX_ANSWER_BYTES = 64 * 2**20


class DashboardClient:
    """Fetches views of a job from a dashboard.

    Args:
        link: The link that ``stratagem run`` prints, or ``host:port``.

    Raises:
        LaunchError: If it is neither.
    """

    def __init__(self, link: str) -> None:
        parts = _split(link)
        if parts is None or parts.path not in ("", "/"):
            raise LaunchError(
                "The address of a job must be the link that 'stratagem run --dashboard' prints, or its "
                f"host:port, got {link!r}."
            )
        self._place = parts.netloc
        self._scheme = parts.scheme
        self._since = 0.0
        self._notes: collections.deque[Any] = collections.deque(maxlen=_MAX_NOTES)
        self._key = parse_qs(parts.query).get("key", [""])[0]
        # Without a proxy: the dashboard is on this machine or in the same network.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def view(self) -> dict[str, Any]:
        """Returns the current state of the job, its history since the last call, and its notes.

        Raises:
            UnavailableError: If nothing responds at the address: the job may have ended.
            LaunchError: If the dashboard needs a key that was not given.
        """
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        url = f"{self._scheme}://{self._place}{STATE_PATH}?since={self._since}"
        request = urllib.request.Request(url, headers=headers)
        try:
            with self._opener.open(request, timeout=_RESPONSE_TIMEOUT) as answer:
                view: dict[str, Any] = json.loads(_read_all(answer))
        except urllib.error.HTTPError as error:
            with error:
                text = error.read(1000).decode(errors="replace").strip()
            raise LaunchError(f"{self._place} does not show a job: {text}") from None
        except urllib.error.URLError as error:
            if isinstance(error.reason, ssl.SSLCertVerificationError):
                raise LaunchError(
                    f"The certificate of {self._place} must be valid, but {error.reason.verify_message}. "
                    "If it is your own, set SSL_CERT_FILE to its file, or to that of its authority."
                ) from None
            raise UnavailableError(f"No dashboard responds at {self._place}: {error}.") from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise UnavailableError(f"No dashboard responds at {self._place}: {error}.") from None
        self._since = view["now"]
        self._notes.extend(view["notes"])
        return {**view, "notes": list(self._notes)}


def _read_all(answer: IO[bytes]) -> bytes:
    data = answer.read(_MAX_ANSWER_BYTES + 1)
    if len(data) > _MAX_ANSWER_BYTES:
        raise ValueError(f"the response is larger than {_MAX_ANSWER_BYTES} bytes")
    return data


def _split(link: str) -> SplitResult | None:
    try:
        parts = urlsplit(link if "://" in link else f"http://{link}")
        is_link = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # half of an IPv6 address, or a port that is not a number
        return None
    return parts if is_link else None
