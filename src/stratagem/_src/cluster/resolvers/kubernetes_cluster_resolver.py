"""``KubernetesClusterResolver``: pods selected by labels."""

from __future__ import annotations

import enum
import importlib
import os
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from stratagem._src.cluster.address import Address
from stratagem._src.cluster.cluster_spec import ClusterSpec
from stratagem._src.cluster.errors import CloudError
from stratagem._src.cluster.resolvers.cluster_resolver import ClusterResolver
from stratagem._src.core.extras import install_hint

__all__ = ["KubernetesClusterResolver", "KubernetesExecutableLocation"]

CoreApi: TypeAlias = Any
"""``kubernetes.client.CoreV1Api``, which is imported only where it is used."""

Pod: TypeAlias = Any
"""``kubernetes.client.V1Pod``."""

_COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"


class KubernetesExecutableLocation(enum.Enum):
    """The location of the program, which determines how it finds the Kubernetes API.

    >>> from stratagem.distribute.cluster_resolver import KubernetesExecutableLocation
    >>> [location.name for location in KubernetesExecutableLocation]
    ['WITHIN_CLUSTER', 'OFF_CLUSTER']
    """

    WITHIN_CLUSTER = 0
    OFF_CLUSTER = 1


class KubernetesClusterResolver(ClusterResolver):
    """A resolver that queries Kubernetes for the pods with given labels.

    Pods of an indexed job are ordered by their completion index, others by name. Kubernetes does not say
    which pod this process is in: set ``task_type`` and ``task_id``. Needs ``stratagem[kubernetes]``, unless
    ``override_client`` is given.

    >>> from stratagem.distribute.cluster_resolver import KubernetesClusterResolver
    >>> resolver = KubernetesClusterResolver({"worker": ["job-name=trainers"]})
    >>> resolver.task_type, resolver.task_id = "worker", 0

    Differs from tf.distribute: addresses are those of the pods, not of their machines, which two pods may
    share.

    Args:
        job_to_label_mapping: The label selectors of each job; by default workers with
            ``job-name=tensorflow``.
        tf_server_port: The port on which every task listens.
        rpc_layer: The protocol prefix of addresses.
        override_client: A configured ``kubernetes.client.CoreV1Api`` to use.
        executable_location: Whether the program runs in a pod of the cluster.

    Raises:
        ValueError: If ``executable_location`` is not a ``KubernetesExecutableLocation``.
    """

    def __init__(
        self,
        job_to_label_mapping: Mapping[str, Sequence[str]] | None = None,
        tf_server_port: int = 8470,
        rpc_layer: str | None = "grpc",
        override_client: CoreApi = None,
        executable_location: KubernetesExecutableLocation = (
            KubernetesExecutableLocation.WITHIN_CLUSTER
        ),
    ) -> None:
        if not isinstance(executable_location, KubernetesExecutableLocation):
            raise ValueError(
                "executable_location must be a KubernetesExecutableLocation, "
                f"got {executable_location!r}."
            )
        self._selectors = dict(job_to_label_mapping or {"worker": ["job-name=tensorflow"]})
        self._port = tf_server_port
        self._rpc_layer = rpc_layer
        self._client = override_client
        self._location = executable_location

    def cluster_spec(self) -> ClusterSpec:
        """Returns the current pods of every job.

        Raises:
            CloudError: If a pod is not running, or the Kubernetes API fails.
            ImportError: If the Kubernetes client is not installed.
        """
        client = self._client or _make_client(self._location)
        return ClusterSpec(
            {
                job: [
                    self._address(pod)
                    for selector in selectors
                    for pod in sorted(_list_pods(client, selector), key=_order)
                ]
                for job, selectors in self._selectors.items()
            }
        )

    def _address(self, pod: Pod) -> str:
        if pod.status.phase != "Running":
            raise CloudError(
                f'Pod "{pod.metadata.name}" is not running; phase: "{pod.status.phase}". '
                "Every selected pod must be running before the cluster is known."
            )
        return str(Address(pod.status.pod_ip, self._port))


def _make_client(location: KubernetesExecutableLocation) -> Any:
    try:
        client: Any = importlib.import_module("kubernetes.client")
        config: Any = importlib.import_module("kubernetes.config")
    except ImportError as error:
        raise ImportError(
            "KubernetesClusterResolver needs the Kubernetes client, or an override_client. "
            + install_hint("kubernetes")
        ) from error
    configuration = client.Configuration()
    try:
        if location is KubernetesExecutableLocation.WITHIN_CLUSTER:
            config.load_incluster_config(client_configuration=configuration)
        else:
            # The client reads KUBECONFIG at import time; this reads it now.
            config.load_kube_config(
                config_file=os.environ.get("KUBECONFIG"), client_configuration=configuration
            )
    except config.ConfigException as error:
        raise CloudError(
            f"Cannot find the Kubernetes API from here ({location.name}): {error}"
        ) from None
    return client.CoreV1Api(client.ApiClient(configuration))


def _list_pods(client: CoreApi, selector: str) -> list[Pod]:
    try:
        return list(client.list_pod_for_all_namespaces(label_selector=selector).items)
    except Exception as error:
        status, reason = getattr(error, "status", None), getattr(error, "reason", error)
        raise CloudError(
            f"Kubernetes could not list the pods with {selector!r}: "
            f"{reason if status is None else f'{status} {reason}'}. "
            "Allow the program's service account to list pods of all namespaces."
        ) from error


def _order(pod: Pod) -> tuple[int, str]:
    labels = getattr(pod.metadata, "labels", None)
    index = labels.get(_COMPLETION_INDEX, "") if isinstance(labels, dict) else ""
    return (int(index) if index.isdigit() else -1, pod.metadata.name)
