"""A client of Google Cloud's REST APIs and of a machine's metadata server."""

from __future__ import annotations

import http.client
import ipaddress
import json
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from stratagem._src.cluster.errors import CloudError, CloudResourceNotFoundError

__all__ = ["Credentials", "GoogleApi", "Service", "read_metadata"]

Credentials = str | Callable[[], str] | None

Service: TypeAlias = Any
"""A service of ``googleapiclient``, or ``None`` for REST calls."""

_TIMEOUT_SECONDS = 30.0
_NOT_FOUND = 404


class GoogleApi:
    """A Google Cloud REST API at a base URL.

    Args:
        base_url: Such as ``https://compute.googleapis.com``.
        credentials: ``"default"`` for the service account of this machine, ``None`` for none, or a
            function that returns an access token.
    """

    def __init__(self, base_url: str, credentials: Credentials) -> None:
        if not (credentials is None or credentials == "default" or callable(credentials)):
            raise TypeError(
                "credentials must be 'default', None or a function that returns an access token, "
                f"got {type(credentials).__name__}."
            )
        self._base_url = base_url.rstrip("/")
        self._credentials = credentials

    def call(
        self,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Returns the API's response to a POST request if there is a body, otherwise to a GET request.

        Raises:
            CloudResourceNotFoundError: If the resource does not exist.
            CloudError: If the API rejects the request, is unreachable, or does not return JSON.
        """
        url = f"{self._base_url}/{urllib.parse.quote(path)}"
        if query:
            url += "?" + urllib.parse.urlencode(query)
        headers = {"Accept": "application/json"}
        token = self._access_token()
        if token is not None:
            _check_token_stays_private(url)
            headers["Authorization"] = f"Bearer {token}"
        data = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            data = json.dumps(body).encode()
        answer = _fetch(urllib.request.Request(url, data, headers), _opener())
        try:
            parsed = json.loads(answer)
        except ValueError:
            parsed = None
        if not isinstance(parsed, dict):
            raise CloudError(
                f"{_without_query(url)} must return a JSON object, got {answer[:200]!r}."
            )
        return parsed

    def _access_token(self) -> str | None:
        if self._credentials is None:
            return None
        if callable(self._credentials):
            return self._credentials()
        answer = read_metadata("instance/service-accounts/default/token")
        try:
            return str(json.loads(answer)["access_token"])
        except (ValueError, KeyError, TypeError):
            raise CloudError(  # the response may contain a token, so it is not shown
                "The metadata server must return an access_token, got something else."
            ) from None


def read_metadata(path: str) -> str:
    """Returns the value at a path of this machine's metadata server, such as ``instance/zone``.

    ``GCE_METADATA_HOST`` and ``GCE_METADATA_IP`` select another server, as in Google's libraries.
    """
    host = (
        os.environ.get("GCE_METADATA_HOST")
        or os.environ.get("GCE_METADATA_IP")
        or "metadata.google.internal"
    )
    request = urllib.request.Request(
        f"http://{host}/computeMetadata/v1/{path}", headers={"Metadata-Flavor": "Google"}
    )
    # Without a proxy: the server belongs to this machine, and it returns tokens.
    return _fetch(request, _opener(urllib.request.ProxyHandler({}))).strip()


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Does not follow redirects, because urllib would send the token to the new location."""

    def redirect_request(self, *_: object, **__: object) -> None:
        return None


def _opener(*handlers: urllib.request.BaseHandler) -> urllib.request.OpenerDirector:
    return urllib.request.build_opener(_NoRedirects, *handlers)


def _fetch(request: urllib.request.Request, opener: urllib.request.OpenerDirector) -> str:
    where = _without_query(request.full_url)
    try:
        with opener.open(request, timeout=_TIMEOUT_SECONDS) as response:
            return str(response.read().decode())
    except urllib.error.HTTPError as error:
        with error:
            message = _message_of(error.read())
        failure = CloudResourceNotFoundError if error.code == _NOT_FOUND else CloudError
        raise failure(f"{where} returned status {error.code}: {message}") from None
    except (OSError, http.client.HTTPException, UnicodeDecodeError) as error:
        reason = getattr(error, "reason", error)
        raise CloudError(f"{where} could not be read: {reason}.") from None


def _message_of(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode(errors="replace") or "no explanation"


def _without_query(url: str) -> str:
    return url.split("?", 1)[0]


def _check_token_stays_private(url: str) -> None:
    parts = urllib.parse.urlsplit(url)
    host = parts.hostname or ""
    try:
        is_local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_local = host == "localhost"
    if parts.scheme != "https" and not is_local:
        raise CloudError(
            f"An access token must be sent over https, got {parts.scheme}://{parts.netloc}."
        )
