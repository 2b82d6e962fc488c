"""``KubernetesBackend``: runs a job as pods of a Kubernetes cluster."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stratagem._src.cluster.errors import LaunchError
from stratagem._src.core.extras import install_hint
from stratagem._src.launcher.backends.kubernetes_follower import JobFollower
from stratagem._src.launcher.backends.kubernetes_manifests import (
    KubernetesOptions,
    Manifest,
    job_manifests,
    secret_manifest,
)
from stratagem._src.launcher.console import Console
from stratagem._src.launcher.job_description import JobDescription
from stratagem._src.transport.secret import new_secret

__all__ = ["KubernetesBackend"]

_JOBSET_GROUP = "jobset.x-k8s.io"
_JOBSETS = (_JOBSET_GROUP, "v1alpha2")
_REQUEST_TIMEOUT = 60


@dataclass(frozen=True)
class KubernetesBackend:
    """Creates the objects of a job in a cluster, follows the job, and deletes it if interrupted."""

    options: KubernetesOptions

    def preview(self, job: JobDescription) -> str:
        """Returns the manifests without the secret, as JSON, which is also valid YAML."""
        manifests = job_manifests(job, self.options, jobset=bool(self.options.jobset))
        items = {"apiVersion": "v1", "kind": "List", "items": manifests}
        return (
            f"# {json.dumps(job.to_json())}\n"
            "# It needs a secret, which 'stratagem run' creates. To apply it by hand:\n"
            f"#   openssl rand -hex 32 | kubectl create secret generic {job.name} "
            "--from-file=secret=/dev/stdin\n"
            f"{json.dumps(items, indent=2)}"
        )

    def run(self, job: JobDescription, console: Console) -> int:
        """Creates the job in the cluster of the client's configuration, and follows it."""
        cluster = _Cluster()
        jobset = self.options.jobset
        if jobset is None:
            jobset = cluster.has_jobsets()
        owner = self._create(cluster, job, jobset)
        what = f"{owner['kind']} {owner['metadata']['name']}"
        console.message(f"created {what} in namespace {self.options.namespace}")
        if self.options.detach:
            return 0
        number = len(list(job.all_tasks()))
        follower = JobFollower(cluster.core, self.options.namespace, job.name, number, console)
        try:
            return follower.follow()
        except KeyboardInterrupt:
            cluster.delete(owner)
            console.message(f"deleted {what}")
            raise
        except cluster.errors as error:
            raise LaunchError(_error_text(f"following {what}", error)) from None

    def _create(self, cluster: _Cluster, job: JobDescription, jobset: bool) -> Manifest:
        """Creates all objects, or none; returns the object that owns the others."""
        owner, *others = job_manifests(job, self.options, jobset)
        reference = {key: owner[key] for key in ("apiVersion", "kind")}
        reference |= {"name": owner["metadata"]["name"], "uid": cluster.create(owner)}
        try:
            # The secret comes last: pods cannot start without it, so every object exists when they do.
            for manifest in [*others, secret_manifest(job, self.options, new_secret())]:
                manifest["metadata"]["ownerReferences"] = [reference]
                cluster.create(manifest)
        except BaseException:  # also Ctrl-C
            cluster.delete(owner)
            raise
        return owner


class _Cluster:
    """The cluster of the client's configuration."""

    def __init__(self) -> None:
        client = _client()
        self.api = _connect()
        self.core = client.CoreV1Api(self.api)
        self._batch = client.BatchV1Api(self.api)
        self._custom = client.CustomObjectsApi(self.api)
        self._groups = client.ApisApi(self.api)
        self._networking = client.NetworkingV1Api(self.api)
        # The client does not wrap the urllib3 errors of its connections.
        self.errors: tuple[type[Exception], ...] = (client.ApiException, _urllib3_error())

    def has_jobsets(self) -> bool:
        """Returns whether JobSets are installed."""
        groups = self._call("listing API groups", self._groups.get_api_versions).groups
        return any(group.name == _JOBSET_GROUP for group in groups)

    def create(self, manifest: Manifest) -> str:
        """Creates an object and returns its unique id."""
        what = f"creating {manifest['kind']} {manifest['metadata']['name']}"
        namespace = manifest["metadata"]["namespace"]
        if manifest["kind"] == "JobSet":
            place = (*_JOBSETS, namespace, "jobsets")
            create = self._custom.create_namespaced_custom_object
            made: Manifest = self._call(what, create, *place, manifest)
            return str(made["metadata"]["uid"])
        creators = {
            "Job": self._batch.create_namespaced_job,
            "Service": self.core.create_namespaced_service,
            "Secret": self.core.create_namespaced_secret,
            "NetworkPolicy": self._networking.create_namespaced_network_policy,
        }
        return str(self._call(what, creators[manifest["kind"]], namespace, manifest).metadata.uid)

    def delete(self, owner: Manifest) -> None:
        """Deletes an object and its dependents."""
        name, namespace = owner["metadata"]["name"], owner["metadata"]["namespace"]
        policy = {"propagation_policy": "Background"}
        what = f"deleting {owner['kind']} {name}"
        if owner["kind"] == "JobSet":
            delete = self._custom.delete_namespaced_custom_object
            self._call(what, delete, *_JOBSETS, namespace, "jobsets", name, **policy)
        else:
            self._call(what, self._batch.delete_namespaced_job, name, namespace, **policy)

    def _call(
        self, what: str, function: Callable[..., Any], *arguments: object, **options: object
    ) -> Any:
        try:
            return function(*arguments, **options, _request_timeout=_REQUEST_TIMEOUT)
        except self.errors as error:
            raise LaunchError(_error_text(what, error)) from None


def _client() -> Any:
    try:
        import kubernetes.client
        import kubernetes.config
    except ImportError:
        raise LaunchError(
            f"--on kubernetes needs the Kubernetes client. {install_hint('kubernetes')}"
        ) from None
    return kubernetes.client


def _urllib3_error() -> type[Exception]:
    from urllib3.exceptions import HTTPError  # the client is built on urllib3

    return HTTPError


def _connect() -> Any:
    from kubernetes import config

    client = _client()
    configuration = client.Configuration()
    try:
        # The client reads KUBECONFIG at import time; this reads it now.
        config.load_kube_config(
            config_file=os.environ.get("KUBECONFIG"), client_configuration=configuration
        )
    except config.ConfigException as error:
        raise LaunchError(
            f"KUBECONFIG or ~/.kube/config must configure a Kubernetes cluster: {error}"
        ) from None
    return client.ApiClient(configuration)


def _error_text(what: str, error: Exception) -> str:
    status = getattr(error, "status", None)
    if status is None:
        return f"{what}: cannot reach the Kubernetes API ({error})"
    try:
        reason = json.loads(getattr(error, "body", None) or "{}").get("message")
    except ValueError:
        reason = None
    return f"{what}: Kubernetes answered {status}: {reason or getattr(error, 'reason', error)}"
