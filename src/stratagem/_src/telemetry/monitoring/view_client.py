"""``ViewClient``: asks a dashboard what it shows."""

from __future__ import annotations

import collections
import http.client
import json
import urllib.error
import urllib.request
from typing import IO, Any
from urllib.parse import SplitResult, parse_qs, urlsplit

from stratagem._src.cluster.errors import LaunchError
from stratagem._src.core.errors import UnavailableError
from stratagem._src.telemetry.monitoring.dashboard.page_request import STATE_PATH

__all__ = ["ViewClient"]

_SECONDS_TO_ANSWER = 10.0
_MOST_NOTES = 100
_MAX_ANSWER_BYTES = 64 * 2**20


class ViewClient:
    """Asks for what a dashboard knows.

    Args:
        link: As ``stratagem run`` prints it, or ``host:port``.

    Raises:
        LaunchError: If it is neither.
    """

    def __init__(self, link: str) -> None:
        parts = _split(link)
        if parts is None or parts.path not in ("", "/"):
            raise LaunchError(
                "A job is found by the link that 'stratagem run --dashboard' prints, or its host:port, got "
                f"{link!r}."
            )
        self._place = parts.netloc
        self._since = 0.0
        self._notes: collections.deque[Any] = collections.deque(maxlen=_MOST_NOTES)
        self._key = parse_qs(parts.query).get("key", [""])[0]
        # Not through a proxy: what is asked is on this machine or near it.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def view(self) -> dict[str, Any]:
        """Returns what is known of the job now; of the past, what happened since the last call, and notes.

        Raises:
            UnavailableError: If nobody answers there: the job may have ended.
            LaunchError: If it needs a key that was not given.
        """
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        url = f"http://{self._place}{STATE_PATH}?since={self._since}"
        request = urllib.request.Request(url, headers=headers)
        try:
            with self._opener.open(request, timeout=_SECONDS_TO_ANSWER) as answer:
                view: dict[str, Any] = json.loads(_all_of(answer))
        except urllib.error.HTTPError as error:
            with error:
                text = error.read(1000).decode(errors="replace").strip()
            raise LaunchError(f"{self._place} does not show a job: {text}") from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise UnavailableError(f"No dashboard answers at {self._place}: {error}.") from None
        self._since = view["now"]
        self._notes.extend(view["notes"])
        return {**view, "notes": list(self._notes)}


def _all_of(answer: IO[bytes]) -> bytes:
    data = answer.read(_MAX_ANSWER_BYTES + 1)
    if len(data) > _MAX_ANSWER_BYTES:
        raise ValueError("it sends more than a dashboard does")
    return data


def _split(link: str) -> SplitResult | None:
    try:
        parts = urlsplit(link if "://" in link else f"http://{link}")
        is_link = parts.scheme == "http" and parts.hostname and parts.port != 0
    except ValueError:  # half of an IPv6 address, or a port that is not a number
        return None
    return parts if is_link else None
