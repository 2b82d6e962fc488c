"""What a Kubernetes cluster needs for a job, as plain data."""

from __future__ import annotations

import collections
from dataclasses import dataclass
from typing import Any

from stratagem._src.cluster.address import Address
from stratagem._src.cluster.errors import LaunchError
from stratagem._src.cluster.loopback import loopback_address
from stratagem._src.launcher.job_description import JobDescription
from stratagem._src.launcher.job_flags import job_flags
from stratagem._src.launcher.script_values import check_name, check_word
from stratagem._src.transport.secret import FILE_VARIABLE

__all__ = ["JOB_LABEL", "KubernetesOptions", "Manifest", "job_manifests", "secret_manifest"]

Manifest = dict[str, Any]

JOB_LABEL = "stratagem.dev/job"
_ROLE_LABEL = "stratagem.dev/role"
_PORT = 29400
_SECRET_FOLDER = "/var/run/stratagem"
_SECRET_KEY = "secret"
_START_SECONDS = 600
_SECONDS_KEPT = 24 * 60 * 60
_INDEX = "$(JOB_COMPLETION_INDEX)"
_ANY_GROUP = 65532
_HIGHEST_USER = 2**31 - 1


@dataclass(frozen=True)
class KubernetesOptions:
    """What is asked of Kubernetes beside what the job description says.

    Attributes:
        image: The image of the tasks' containers, with the program and stratagem in it.
        namespace: Where everything is made.
        service_account: Under which the pods run; empty for the namespace's default. They get no token.
        jobset: Whether to make a JobSet; ``None`` if the cluster has them.
        run_as_user: The number of the user that the containers run as; ``None`` for the image's, which must
            not be root then, and 0 for root.
        network_policy: Whether to keep other pods of the cluster away from those of the job.
        detach: Whether to return when everything is made.

    Raises:
        LaunchError: If there is no image, or something is not what Kubernetes takes for a name.
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
                "--on kubernetes needs --image, with stratagem and the program in it, got none."
            )
        check_word("--image", self.image)
        check_name("--namespace", self.namespace)
        if self.service_account:
            check_name("--service-account", self.service_account)
        if self.run_as_user is not None and not 0 <= self.run_as_user <= _HIGHEST_USER:
            raise LaunchError(
                "--run-as-user must be the number of a user, such as 1000, or 0 for root, got "
                f"{self.run_as_user}."
            )


def job_manifests(job: JobDescription, options: KubernetesOptions, jobset: bool) -> list[Manifest]:
    """Returns everything but the secret: a headless service and a job for each role, or a JobSet; a policy.

    The first one is the job of the leader, or the JobSet. It owns the others.

    Args:
        job: The job.
        options: Where, and with which image.
        jobset: Whether to use a JobSet, which makes its service and its jobs itself.
    """
    roles = collections.Counter(job.tasks.jobs())
    leader = next(iter(roles))
    suffix = "-0" if jobset else ""  # a JobSet numbers its jobs as well
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
            "spec": spec | {"ttlSecondsAfterFinished": _SECONDS_KEPT},
        }
        for role, spec in specs.items()
    ]
    service: Manifest = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(job, options, job.name),
        # A name for every pod, at once: the leader's is looked for before it is ready.
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {JOB_LABEL: job.name},
            "ports": [{"name": "rendezvous", "port": _PORT}],
        },
    }
    return [jobs[0], service, *policies, *jobs[1:]]


def secret_manifest(job: JobDescription, options: KubernetesOptions, secret: str) -> Manifest:
    """Returns the object with the secret of a job. It is never printed."""
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
            # The launcher in the pods starts the job again where it can; this is for lost pods.
            "failurePolicy": {"maxRestarts": job.rules.max_restarts},
            "ttlSecondsAfterFinished": _SECONDS_KEPT,
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
        # Kubernetes would take $(…) in the program's arguments for a variable.
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
        # A pod that was taken away comes back. One that ended badly has told all others, which end too.
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
    """Returns what the restricted pod security standard asks for, and who may read the secret."""
    security: Manifest = {
        "runAsNonRoot": options.run_as_user != 0,
        "seccompProfile": {"type": "RuntimeDefault"},
        # So that a container that is not root reads the secret as well.
        "fsGroup": _ANY_GROUP,
    }
    return (
        security if options.run_as_user is None else security | {"runAsUser": options.run_as_user}
    )


def _network_policy(job: JobDescription, options: KubernetesOptions) -> Manifest:
    """Returns the policy that only pods of the job reach its pods.

    On every port: tasks listen where they find a free one, and XLA, whose ports authenticate nobody, too.
    A dashboard that was asked for at a fixed port is for others as well, who need its key.
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
