"""What is made in a Kubernetes cluster, against the API's own schema."""

import dataclasses
import json

import pytest

from kubernetes_schema import check
from stratagem._src.cli import main
from stratagem._src.cluster.errors import LaunchError
from stratagem._src.launcher.backends.kubernetes import KubernetesBackend
from stratagem._src.launcher.backends.kubernetes_manifests import (
    KubernetesOptions,
    job_manifests,
    secret_manifest,
)
from stratagem._src.launcher.job_description import JobDescription
from stratagem._src.launcher.job_rules import JobRules
from stratagem._src.launcher.python_program import PythonProgram
from stratagem._src.launcher.task_counts import TaskCounts
from stratagem._src.launcher.task_resources import TaskResources

JOB = JobDescription(
    PythonProgram("/app/train.py", ("--note", "$(HOME)")),
    TaskCounts(3, 2, chief=True, evaluator=True),
    environment={"A": "b"},
    resources=TaskResources(cpus=2, memory_bytes=2**31, gpus=1),
    rules=JobRules(max_restarts=2, grace_seconds=30.0),
)
OPTIONS = KubernetesOptions("registry/image:1", namespace="team", service_account="trainer")


def container_of(spec):
    [container] = spec["template"]["spec"]["containers"]
    return container


@pytest.mark.parametrize("jobset", [False, True])
def test_everything_fits_the_schema(jobset):
    for manifest in [*job_manifests(JOB, OPTIONS, jobset), secret_manifest(JOB, OPTIONS, "s" * 64)]:
        check(manifest)
        assert manifest["metadata"]["namespace"] == "team"


def test_schema_finds_what_is_wrong():
    [job, *_] = job_manifests(JOB, OPTIONS, jobset=False)
    job["spec"]["template"]["spec"]["containers"][0]["imagge"] = "x"
    with pytest.raises(ValueError, match="V1Container has no field 'imagge'"):
        check(job)


def test_every_role_is_a_job_and_the_leader_is_where_all_look():
    leader, service, _, *others = job_manifests(JOB, OPTIONS, jobset=False)
    assert [job["metadata"]["name"] for job in (leader, *others)] == [
        "train-chief",
        "train-worker",
        "train-ps",
        "train-evaluator",
    ]
    assert [job["spec"]["completions"] for job in (leader, *others)] == [1, 3, 2, 1]
    assert service["spec"]["clusterIP"] == "None"
    for job in (leader, *others):
        command = container_of(job["spec"])["command"]
        assert "--rdzv-endpoint=train-chief-0.train:29400" in command
        labels = job["spec"]["template"]["metadata"]["labels"]
        assert service["spec"]["selector"].items() <= labels.items()
    assert "startupProbe" in container_of(leader["spec"])
    worker = container_of(others[0]["spec"])
    assert "startupProbe" not in worker
    assert "--task=worker:$(JOB_COMPLETION_INDEX)" in worker["command"]
    assert "--own-host=train-worker-$(JOB_COMPLETION_INDEX).train" in worker["command"]
    assert worker["command"][-1] == "$$(HOME)"


def test_jobset_has_the_names_that_its_controller_gives():
    jobset, _ = job_manifests(JOB, OPTIONS, jobset=True)
    jobs = jobset["spec"]["replicatedJobs"]
    assert [job["name"] for job in jobs] == ["chief", "worker", "ps", "evaluator"]
    command = container_of(jobs[1]["template"]["spec"])["command"]
    assert "--rdzv-endpoint=train-chief-0-0.train:29400" in command
    assert "--own-host=train-worker-0-$(JOB_COMPLETION_INDEX).train" in command
    assert jobset["spec"]["network"]["subdomain"] == "train"


def test_gpus_are_for_tasks_that_compute():
    jobs = [m for m in job_manifests(JOB, OPTIONS, jobset=False) if m["kind"] == "Job"]
    asked = [container_of(job["spec"])["resources"]["limits"] for job in jobs]
    assert [found.get("nvidia.com/gpu") for found in asked] == [None, "1", None, "1"]
    assert asked[0] == {"cpu": "2", "memory": "2048Mi"}


def test_pods_reach_no_api_and_only_they_read_the_secret():
    for manifest in job_manifests(JOB, OPTIONS, jobset=False):
        if manifest["kind"] == "Job":
            pod = manifest["spec"]["template"]["spec"]
            assert pod["automountServiceAccountToken"] is False
            assert pod["volumes"][0]["secret"]["defaultMode"] & 0o007 == 0


def pods_of(manifests):
    for manifest in manifests:
        if manifest["kind"] == "Job":
            yield manifest["spec"]["template"]
        elif manifest["kind"] == "JobSet":
            for job in manifest["spec"]["replicatedJobs"]:
                yield job["template"]["spec"]["template"]


@pytest.mark.parametrize("jobset", [False, True])
def test_pods_may_do_no_more_than_the_restricted_standard_allows(jobset):
    pods = list(pods_of(job_manifests(JOB, OPTIONS, jobset)))
    assert len(pods) == 4
    for pod in pods:
        security = pod["spec"]["securityContext"]
        assert security["runAsNonRoot"] is True
        assert "runAsUser" not in security  # the image says
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        [container] = pod["spec"]["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        }


@pytest.mark.parametrize(("user", "must_not_be_root"), [(1000, True), (0, False)])
def test_the_user_of_an_image_that_runs_as_root_can_be_chosen(user, must_not_be_root):
    options = KubernetesOptions("image", run_as_user=user)
    manifests = job_manifests(JOB, options, jobset=False)
    for manifest in manifests:
        check(manifest)
    for pod in pods_of(manifests):
        security = pod["spec"]["securityContext"]
        assert (security["runAsUser"], security["runAsNonRoot"]) == (user, must_not_be_root)


@pytest.mark.parametrize("jobset", [False, True])
def test_only_pods_of_the_job_reach_its_pods(jobset):
    manifests = job_manifests(JOB, OPTIONS, jobset)
    [policy] = [one for one in manifests if one["kind"] == "NetworkPolicy"]
    selected = policy["spec"]["podSelector"]["matchLabels"]
    assert policy["spec"]["policyTypes"] == ["Ingress"]
    assert policy["spec"]["ingress"] == [{"from": [{"podSelector": {"matchLabels": selected}}]}]
    for pod in pods_of(manifests):
        assert selected.items() <= pod["metadata"]["labels"].items()
    without = KubernetesOptions("image", network_policy=False)
    kinds = {manifest["kind"] for manifest in job_manifests(JOB, without, jobset)}
    assert "NetworkPolicy" not in kinds


@pytest.mark.parametrize(
    ("address", "ports"), [("0.0.0.0:8080", [8080]), ("127.0.0.1:8080", []), ("0.0.0.0:0", [])]
)
def test_a_dashboard_at_a_fixed_port_is_for_others_too(address, ports):
    job = dataclasses.replace(JOB, dashboard=address)
    manifests = job_manifests(job, OPTIONS, jobset=False)
    [policy] = [one for one in manifests if one["kind"] == "NetworkPolicy"]
    check(policy)
    found = [port["port"] for rule in policy["spec"]["ingress"] for port in rule.get("ports", [])]
    assert found == ports


@pytest.mark.parametrize(
    "options",
    [
        {"image": "a b"},
        {"image": "a\nb"},
        {"image": "a", "namespace": "x\ny"},
        {"image": "a", "namespace": "Team"},
        {"image": "a", "service_account": "x/y"},
        {"image": "a", "run_as_user": -1},
    ],
)
def test_what_is_no_name_reaches_no_manifest(options):
    with pytest.raises(LaunchError, match="must be"):
        KubernetesOptions(**options)


def test_preview_has_no_secret_and_is_data():
    text = KubernetesBackend(OPTIONS).preview(JOB)
    assert '"Secret"' not in text
    said = "\n".join(line for line in text.split("\n") if not line.startswith("#"))
    for manifest in json.loads(said)["items"]:
        check(manifest)


def test_image_is_needed(capsys):
    with pytest.raises(LaunchError, match="needs --image"):
        KubernetesOptions("")
    assert main(["run", "--on", "kubernetes", "--dry-run", "train.py"]) == 2
