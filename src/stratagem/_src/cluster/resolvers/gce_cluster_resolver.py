"""``GCEClusterResolver``: the machines of a Compute Engine instance group."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stratagem._src.cluster.address import Address
from stratagem._src.cluster.cluster_spec import ClusterSpec
from stratagem._src.cluster.errors import CloudError
from stratagem._src.cluster.resolvers.cluster_resolver import ClusterResolver
from stratagem._src.cluster.resolvers.google_cloud import Credentials, GoogleApi, Service

__all__ = ["GCEClusterResolver"]

_RUNNING = "RUNNING"


class GCEClusterResolver(ClusterResolver):
    """A resolver that queries Compute Engine for the running instances of an instance group.

    The group is one job. Every instance needs its own ``task_id``: its position in the sorted list of
    addresses. No Google library is needed.

    >>> from stratagem.distribute.cluster_resolver import GCEClusterResolver
    >>> resolver = GCEClusterResolver(
    ...     project="p", zone="us-east1-d", instance_group="trainers", port=8470, task_id=1
    ... )
    >>> resolver.task_type, resolver.task_id, resolver.rpc_layer
    ('worker', 1, 'grpc')

    Args:
        project: The project of the group.
        zone: The zone of the group.
        instance_group: The name of the group.
        port: The port on which every task listens.
        task_type: The job of the instances.
        task_id: The index of this instance.
        rpc_layer: The protocol prefix of addresses.
        credentials: ``"default"`` for the service account of this machine, ``None`` for none, or a
            function that returns an access token.
        service: A ``googleapiclient`` service for ``compute`` ``v1``, used instead of REST calls
            and ``credentials``.
        api_url: The URL of the Compute Engine API.
    """

    def __init__(
        self,
        project: str,
        zone: str,
        instance_group: str,
        port: int,
        task_type: str = "worker",
        task_id: int | None = 0,
        rpc_layer: str | None = "grpc",
        credentials: Credentials = "default",
        service: Service = None,
        *,
        api_url: str = "https://compute.googleapis.com",
    ) -> None:
        self._project = project
        self._zone = zone
        self._instance_group = instance_group
        self._port = port
        self._task_type = task_type
        self._task_id = task_id
        self._rpc_layer = rpc_layer
        self._service = service
        self._api = GoogleApi(api_url, credentials)

    def cluster_spec(self) -> ClusterSpec:
        """Returns the running instances of the group, sorted by address.

        Raises:
            CloudError: If the API fails, or no instance is running.
        """
        pages = self._pages_of_rest() if self._service is None else self._pages_of_service()
        addresses = sorted(
            self._address(item["instance"].rsplit("/", 1)[-1])
            for page in pages
            for item in page.get("items", [])
            # The request filters running instances; one that stopped since may still be listed.
            if item.get("status", _RUNNING) == _RUNNING
        )
        if not addresses:
            raise CloudError(
                f"An instance group must have a running instance, got none in "
                f"{self._instance_group!r} ({self._project}, {self._zone}). Start one."
            )
        return ClusterSpec({str(self.task_type): addresses})

    @property
    def task_type(self) -> str | None:
        """The job of the instances."""
        return self._task_type

    @task_type.setter
    def task_type(self, task_type: str | None) -> None:
        raise RuntimeError(
            "You cannot reset the task_type of the GCEClusterResolver after it has been created. "
            f"Pass task_type={task_type!r} to its constructor."
        )

    def _address(self, instance: str) -> str:
        if self._service is None:
            details = self._api.call(f"{self._zone_path()}/instances/{instance}")
        else:
            details = (
                self._service.instances()
                .get(project=self._project, zone=self._zone, instance=instance)
                .execute()
            )
        for interface in details.get("networkInterfaces", [])[:1]:
            host = interface.get("networkIP") or interface.get("ipv6Address")
            if host:
                return str(Address(host, self._port))
        raise CloudError(
            f"An instance must have an internal address, got none for {instance!r} "
            f"(status {details.get('status')})."
        )

    def _pages_of_rest(self) -> Iterator[dict[str, Any]]:
        path = f"{self._zone_path()}/instanceGroups/{self._instance_group}/listInstances"
        query = {"orderBy": "name"}
        while True:
            page = self._api.call(path, query, {"instanceState": _RUNNING})
            yield page
            if not page.get("nextPageToken"):
                return
            query = {"orderBy": "name", "pageToken": page["nextPageToken"]}

    def _pages_of_service(self) -> Iterator[dict[str, Any]]:
        groups = self._service.instanceGroups()
        request = groups.listInstances(
            project=self._project,
            zone=self._zone,
            instanceGroup=self._instance_group,
            body={"instanceState": _RUNNING},
            orderBy="name",
        )
        while request is not None:
            page = request.execute()
            yield page
            request = groups.listInstances_next(previous_request=request, previous_response=page)

    def _zone_path(self) -> str:
        return f"compute/v1/projects/{self._project}/zones/{self._zone}"
