"""Finds the hosts of a TPU: in the arguments, the environment, the Cloud TPU API or the metadata server."""

from __future__ import annotations

import json
import os
import urllib.parse
from typing import Any, Protocol

from stratagem._src.cluster.address import Address
from stratagem._src.cluster.environment_variables import first_set, is_set, read_integer
from stratagem._src.cluster.errors import (
    CloudError,
    CloudResourceNotFoundError,
    ClusterSpecError,
    EnvironmentVariableError,
)
from stratagem._src.cluster.resolvers.google_cloud import (
    Credentials,
    GoogleApi,
    Service,
    read_metadata,
)

__all__ = ["ListedTPU", "MetadataTPU", "NamedTPU", "TPUHosts", "find_tpu"]

_RUNTIME_PORT = 8470
_API_URL = "https://tpu.googleapis.com"
_HOST_VARIABLES = (
    "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS",
    "TPU_PROCESS_ADDRESSES",
    "TPU_WORKER_HOSTNAMES",
)


class TPUHosts(Protocol):
    """The hosts of one TPU."""

    def addresses(self) -> list[Address]:
        """Returns the address of each host, in order; none for a TPU of only this machine."""

    def own_index(self) -> int:
        """Returns the index of this machine among the hosts."""


class ListedTPU:
    """A TPU with given hosts."""

    def __init__(self, addresses: list[Address]) -> None:
        self._addresses = addresses

    def addresses(self) -> list[Address]:
        """Returns the given addresses."""
        return self._addresses

    def own_index(self) -> int:
        """Returns the value of ``TPU_WORKER_ID``, or 0."""
        return _read_worker_id() or 0


class NamedTPU:
    """A TPU that the Cloud TPU API finds by name."""

    def __init__(
        self, name: str, zone: str | None, project: str | None, api: GoogleApi, service: Service
    ) -> None:
        self._name = name
        self._zone = zone
        self._project = project
        self._api = api
        self._service = service

    def addresses(self) -> list[Address]:
        """Returns the hosts that the API lists.

        Raises:
            CloudResourceNotFoundError: If there is no TPU of that name.
            CloudError: If it is not ready.
        """
        node = self._node()
        if node.get("state") != "READY":
            raise CloudError(
                f"TPU {self._name!r} must be in the state READY, got {node.get('state')}"
                f"{_because(node)}. Wait until it is ready, or start it."
            )
        # Version 1 of the API has the address of a single host in the node itself.
        endpoints = node.get("networkEndpoints") or [node]
        try:
            return [
                Address(endpoint["ipAddress"], int(endpoint.get("port") or _RUNTIME_PORT))
                for endpoint in endpoints
            ]
        except (KeyError, ValueError) as error:
            raise CloudError(
                f"The API must return an address for every host of TPU {self._name!r}: {error}."
            ) from None

    def own_index(self) -> int:
        """Returns the value of ``TPU_WORKER_ID``, or 0."""
        return _read_worker_id() or 0

    def _node(self) -> dict[str, Any]:
        project = self._project or read_metadata("project/project-id")
        zone = self._zone or read_metadata("instance/zone").rsplit("/", 1)[-1]
        full_name = f"projects/{project}/locations/{zone}/nodes/{self._name}"
        if self._service is None:
            return self._api.call(f"v2/{full_name}")
        try:
            request = self._service.projects().locations().nodes().get(name=full_name)
            node: dict[str, Any] = request.execute()
        except Exception as error:
            raise CloudResourceNotFoundError(
                f"Could not look up TPU {full_name!r} with the given service: {error}. "
                "Check the name, the zone and the project."
            ) from error
        return node


class MetadataTPU:
    """The TPU of this machine, from its metadata server."""

    def addresses(self) -> list[Address]:
        """Returns the hosts of this machine's TPU.

        Raises:
            CloudResourceNotFoundError: If this machine is not part of a TPU.
        """
        try:
            text = read_metadata("instance/attributes/worker-network-endpoints")
        except CloudError as error:
            raise CloudResourceNotFoundError(
                "Please provide a TPU name: none was given, no variable names one, and this "
                f"machine's metadata lists no TPU hosts ({error})."
            ) from None
        # The value lists either host names, or name:id:address of each host.
        hosts = [part.strip().split(":")[-1] for part in text.split(",")]
        try:
            return [Address(host, _RUNTIME_PORT) for host in hosts]
        except ClusterSpecError as error:
            raise CloudError(
                f"worker-network-endpoints must list TPU hosts, got {text!r}: {error}"
            ) from None

    def own_index(self) -> int:
        """Returns the value of ``TPU_WORKER_ID`` or of the metadata's ``agent-worker-number``."""
        number = _read_worker_id()
        if number is not None:
            return number
        text = read_metadata("instance/attributes/agent-worker-number")
        if not (text.isascii() and text.isdigit()):
            raise CloudError(f"agent-worker-number must be a whole number, got {text!r}.")
        return int(text)


def find_tpu(
    tpu: str | list[str] | None,
    zone: str | None,
    project: str | None,
    credentials: Credentials,
    service: Service,
    discovery_url: str | None,
) -> TPUHosts:
    """Returns the source of the hosts of a TPU, without a network request."""
    if isinstance(tpu, list):
        if len(tpu) != 1:
            raise ValueError(f"tpu must name one TPU, got {tpu}.")
        tpu = tpu[0]
    if tpu == "local":
        return ListedTPU([])
    api = GoogleApi(_api_url(discovery_url), credentials)
    if tpu and tpu.startswith("grpc://"):
        return ListedTPU(_parse_hosts(tpu))
    if tpu:
        return NamedTPU(tpu, zone, project, api, service)
    variable = first_set(*_HOST_VARIABLES)
    if variable is not None:
        text = os.environ[variable]
        try:
            return ListedTPU(_parse_hosts(text))
        except ClusterSpecError as error:
            raise EnvironmentVariableError(
                variable, text, f"TPU hosts separated by commas ({error})"
            ) from None
    if is_set("TPU_NAME"):
        return NamedTPU(os.environ["TPU_NAME"].strip(), zone, project, api, service)
    if is_set("TPU_CONFIG"):
        config = _read_tpu_config()
        return NamedTPU(
            config["tpu_node_name"],
            zone or config.get("zone"),
            project or config.get("project"),
            api,
            service,
        )
    return MetadataTPU()


def _parse_hosts(text: str) -> list[Address]:
    addresses = []
    for part in text.split(","):
        host = part.strip().removeprefix("grpc://")
        has_no_port = ":" not in host or host.endswith("]")
        addresses.append(Address.parse(f"{host}:{_RUNTIME_PORT}" if has_no_port else host))
    return addresses


def _read_tpu_config() -> dict[str, str]:
    text = os.environ["TPU_CONFIG"]
    try:
        config = json.loads(text)
    except (ValueError, RecursionError):
        config = None
    if (
        not isinstance(config, dict)
        or not config.get("tpu_node_name")
        or not all(isinstance(value, str) for value in config.values())
    ):
        raise EnvironmentVariableError(
            "TPU_CONFIG", text, 'JSON such as {"tpu_node_name": "t", "project": "p", "zone": "z"}'
        )
    return config


def _read_worker_id() -> int | None:
    if not is_set("TPU_WORKER_ID"):
        return None
    return read_integer("TPU_WORKER_ID", "the number of this TPU host", "Leave it unset.")


def _api_url(discovery_url: str | None) -> str:
    url = os.environ.get("TPU_API_DISCOVERY_URL") or discovery_url
    if not url:
        return _API_URL
    parts = urllib.parse.urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _because(node: dict[str, Any]) -> str:
    health = node.get("healthDescription") or node.get("health")
    return f" ({health})" if health else ""
