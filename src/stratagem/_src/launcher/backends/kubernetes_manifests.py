"""The Kubernetes manifests of a job, as plain data."""

from __future__ import annotations

import collections
from dataclasses import dataclass
from typing import Any

from stratagem._src.cluster.address import Address
from stratagem._src.cluster.errors import LaunchError
from stratagem._src.cluster.loopback import loopback_address
from stratagem._src.launcher.flag_validation import check_name, check_word
from stratagem._src.launcher.job_description import JobDescription
from stratagem._src.launcher.job_flags import job_flags
from stratagem._src.transport.secret import FILE_VARIABLE

__all__ = ["JOB_LABEL", "KubernetesOptions", "Manifest", "job_manifests", "secret_manifest"]

Manifest = dict[str, Any]

JOB_LABEL = "stratagem.dev/job"
_ROLE_LABEL = "stratagem.dev/role"
_PORT = 29400
_SECRET_FOLDER = "/var/run/stratagem"
_SECRET_KEY = "secret"
_START_SECONDS = 600
_RETENTION_SECONDS = 24 * 60 * 60
_INDEX = "$(JOB_COMPLETION_INDEX)"
_ANY_GROUP = 65532
_MAX_USER_ID = 2**31 - 1


@dataclass(frozen=True)
class KubernetesOptions:
    """The Kubernetes options of a job, in addition to the job description.

    Attributes:
        image: The image of the tasks' containers, which contains the program and stratagem.
        namespace: The namespace of all objects.
        service_account: The service account of the pods; empty for the namespace's default. They get no
            token.
        jobset: Whether to create a JobSet; ``None`` to do so if the cluster supports it.
        run_as_user: The user id of the containers; ``None`` for the image's user, which must not be root,
            and 0 for root.
        network_policy: Whether to block access from other pods of the cluster.
        detach: Whether to return when everything is created.

    Raises:
        LaunchError: If there is no image, or a name is not valid in Kubernetes.
    """

    image: str
    namespace: str = "default"
    service_account: str = ""
    jobset: bool | None = None
    run_as_user: int | None = None
    network_policy: bool = True
    detach: bool = False

    def __post_init__(self) -> None:
        if not self.image:
            raise LaunchError(
                "--on kubernetes needs --image, which contains stratagem and the program, got none."
            )
        check_word("--image", self.image)
        check_name("--namespace", self.namespace)
        if self.service_account:
            check_name("--service-account", self.service_account)
        if self.run_as_user is not None and not 0 <= self.run_as_user <= _MAX_USER_ID:
            raise LaunchError(
                "--run-as-user must be a user id, such as 1000, or 0 for root, got "
                f"{self.run_as_user}."
            )


def job_manifests(job: JobDescription, options: KubernetesOptions, jobset: bool) -> list[Manifest]:
    """Returns all manifests except the secret.

    These are a headless service and a Job for each role, or a JobSet, and a network policy. The first one
    is the Job of the leader, or the JobSet. It owns the others.

    Args:
        job: The job.
        options: The Kubernetes options.
        jobset: Whether to use a JobSet, which creates its service and its Jobs itself.
    """
    roles = collections.Counter(job.tasks.jobs())
    leader = next(iter(roles))
    suffix = "-0" if jobset else ""  # a JobSet also numbers its Jobs
    host = f"{job.name}-{leader}{suffix}-0.{job.name}"
    specs = {
        role: _job_spec(
            job, options, role, number, f"{host}:{_PORT}", f"{job.name}-{role}{suffix}-{_INDEX}"
        )
        for role, number in roles.items()
    }
    policies = [_network_policy(job, options)] if options.network_policy else []
    if jobset:
        return [_jobset(job, options, specs), *policies]
    jobs = [
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": _metadata(job, options, f"{job.name}-{role}", role),
            "spec": spec | {"ttlSecondsAfterFinished": _RETENTION_SECONDS},
        }
        for role, spec in specs.items()
    ]
    service: Manifest = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(job, options, job.name),
        # Pods need DNS names before they are ready: the others look up the leader while it starts.
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {JOB_LABEL: job.name},
            "ports": [{"name": "rendezvous", "port": _PORT}],
        },
    }
    return [jobs[0], service, *policies, *jobs[1:]]


def secret_manifest(job: JobDescription, options: KubernetesOptions, secret: str) -> Manifest:
    """Returns the manifest with the secret of a job. It is never printed."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _metadata(job, options, job.name),
        "type": "Opaque",
        "immutable": True,
        "stringData": {_SECRET_KEY: secret},
    }


def _metadata(
    job: JobDescription, options: KubernetesOptions, name: str, role: str | None = None
) -> Manifest:
    return {"name": name, "namespace": options.namespace, "labels": _labels(job, role)}


def _labels(job: JobDescription, role: str | None) -> dict[str, str]:
    labels = {"app.kubernetes.io/managed-by": "stratagem", JOB_LABEL: job.name}
    return labels if role is None else labels | {_ROLE_LABEL: role}


def _jobset(
    job: JobDescription, options: KubernetesOptions, specs: dict[str, Manifest]
) -> Manifest:
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": _metadata(job, options, job.name),
        "spec": {
            "network": {
                "enableDNSHostnames": True,
                "subdomain": job.name,
                "publishNotReadyAddresses": True,
            },
            # The launcher in the pods restarts the job where it can; this covers lost pods.
            "failurePolicy": {"maxRestarts": job.rules.max_restarts},
            "ttlSecondsAfterFinished": _RETENTION_SECONDS,
            "replicatedJobs": [
                {
                    "name": role,
                    "replicas": 1,
                    "template": {"metadata": {"labels": _labels(job, role)}, "spec": spec},
                }
                for role, spec in specs.items()
            ],
        },
    }


def _job_spec(
    job: JobDescription,
    options: KubernetesOptions,
    role: str,
    number: int,
    endpoint: str,
    own_name: str,
) -> Manifest:
    node = ["python", "-m", "stratagem", "run", "--on=hosts", f"--task={role}:{_INDEX}"]
    node += [f"--rdzv-endpoint={endpoint}", f"--own-host={own_name}.{job.name}"]
    node.append(f"--rdzv-timeout={_START_SECONDS}")
    container: Manifest = {
        "name": "task",
        "image": options.image,
        # Escapes $(…) in the program's arguments, which Kubernetes would expand as a variable.
        "command": node + [flag.replace("$(", "$$(") for flag in job_flags(job)],
        "env": [{"name": FILE_VARIABLE, "value": f"{_SECRET_FOLDER}/{_SECRET_KEY}"}],
        "volumeMounts": [{"name": "secret", "mountPath": _SECRET_FOLDER, "readOnly": True}],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    resources = _resources(job, role)
    if resources:
        container["resources"] = {"requests": resources, "limits": resources}
    if endpoint.startswith(own_name.replace(_INDEX, "0")):
        container["ports"] = [{"name": "rendezvous", "containerPort": _PORT}]
        container["startupProbe"] = {
            "tcpSocket": {"port": _PORT},
            "periodSeconds": 10,
            "failureThreshold": _START_SECONDS // 10,
        }
    pod: Manifest = {
        "subdomain": job.name,
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": int(job.rules.grace_seconds) + 10,
        "containers": [container],
        "volumes": [
            {"name": "secret", "secret": {"secretName": job.name, "defaultMode": 0o440}},
        ],
        "securityContext": _pod_security(options),
    }
    if options.service_account:
        pod["serviceAccountName"] = options.service_account
    return {
        "completions": number,
        "parallelism": number,
        "completionMode": "Indexed",
        "backoffLimit": job.rules.max_restarts,
        # An evicted pod is replaced. A pod that failed has notified all others, so the whole Job fails.
        "podFailurePolicy": {
            "rules": [
                {
                    "action": "Ignore",
                    "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
                },
                {"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": [0]}},
            ]
        },
        "template": {"metadata": {"labels": _labels(job, role)}, "spec": pod},
    }


def _pod_security(options: KubernetesOptions) -> Manifest:
    """Returns the security context of the restricted pod security standard, with access to the secret."""
    security: Manifest = {
        "runAsNonRoot": options.run_as_user != 0,
        "seccompProfile": {"type": "RuntimeDefault"},
        # Lets a container that does not run as root read the secret.
        "fsGroup": _ANY_GROUP,
    }
    return (
        security if options.run_as_user is None else security | {"runAsUser": options.run_as_user}
    )


def _network_policy(job: JobDescription, options: KubernetesOptions) -> Manifest:
    """Returns a policy that lets only pods of the job reach its pods.

    It covers every port: tasks listen on arbitrary free ports, and so does XLA, whose ports have no
    authentication. A dashboard with a fixed port stays reachable for others, who need its key.
    """
    pods = {"podSelector": {"matchLabels": {JOB_LABEL: job.name}}}
    ingress: list[Manifest] = [{"from": [pods]}]
    if job.dashboard is not None:
        address = Address.parse(job.dashboard)
        if address.port and loopback_address(address.host) is None:
            ingress.append({"ports": [{"port": address.port, "protocol": "TCP"}]})
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _metadata(job, options, job.name),
        "spec": {**pods, "policyTypes": ["Ingress"], "ingress": ingress},
    }


def _resources(job: JobDescription, role: str) -> dict[str, str]:
    wanted = job.resources
    resources = {} if wanted.cpus is None else {"cpu": str(wanted.cpus)}
    if wanted.memory_bytes is not None:
        resources["memory"] = f"{-(-wanted.memory_bytes // 2**20)}Mi"
    gpus = job.gpus_of(role)
    return resources if gpus is None else resources | {"nvidia.com/gpu": str(gpus)}
