"""Against a local server that speaks the Kubernetes API's JSON."""

import importlib
import json
import sys
import urllib.request
from types import SimpleNamespace
from urllib.parse import urlencode

import pytest

from stratagem._src.cluster import (
    CloudError,
    ClusterSpec,
    KubernetesClusterResolver,
    KubernetesExecutableLocation,
)

OFF_CLUSTER = KubernetesExecutableLocation.OFF_CLUSTER


def pod(name, address, phase="Running", index=None):
    labels = {} if index is None else {"batch.kubernetes.io/job-completion-index": str(index)}
    return {
        "metadata": {"name": name, "namespace": "default", "labels": labels},
        "spec": {"containers": [{"name": "main", "image": "trainer"}]},
        "status": {"phase": phase, "podIP": address, "hostIP": "192.168.0.1"},
    }


@pytest.fixture
def kubernetes_api(stand_in):
    """The API's list of pods, by label selector."""
    stand_in.pods = {}

    def list_pods(request):
        items = stand_in.pods[request.query["labelSelector"]]
        metadata = {"resourceVersion": "1"}
        return 200, {"kind": "PodList", "apiVersion": "v1", "metadata": metadata, "items": items}

    stand_in.routes["GET /api/v1/pods"] = list_pods
    return stand_in


class PlainClient:
    """The one call of ``CoreV1Api`` that the resolver makes, without the client library."""

    def __init__(self, url):
        self._url = url

    def list_pod_for_all_namespaces(self, label_selector):
        query = urlencode({"labelSelector": label_selector})
        with urllib.request.urlopen(f"{self._url}/api/v1/pods?{query}") as response:
            answer = json.loads(response.read())
        return SimpleNamespace(
            items=[
                SimpleNamespace(
                    metadata=SimpleNamespace(**item["metadata"]),
                    status=SimpleNamespace(
                        phase=item["status"]["phase"], pod_ip=item["status"]["podIP"]
                    ),
                )
                for item in answer["items"]
            ]
        )


@pytest.fixture(
    params=[
        "plain client",
        pytest.param("kubernetes client", marks=pytest.mark.peer("kubernetes")),
    ]
)
def make_resolver(request, kubernetes_api, monkeypatch, tmp_path):
    if request.param == "plain client":
        client = PlainClient(kubernetes_api.url)
        return lambda jobs=None: KubernetesClusterResolver(jobs, override_client=client)
    context = {"name": "c", "context": {"cluster": "k", "user": "u"}}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [context],
        "clusters": [{"name": "k", "cluster": {"server": kubernetes_api.url}}],
        "users": [{"name": "u", "user": {}}],
    }
    (tmp_path / "config").write_text(json.dumps(config))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    return lambda jobs=None: KubernetesClusterResolver(jobs, executable_location=OFF_CLUSTER)


def test_the_pods_of_each_job_come_in_the_order_of_their_names(kubernetes_api, make_resolver):
    kubernetes_api.pods = {
        "job-name=a": [pod("abc", "10.1.2.3"), pod("def", "10.1.2.4"), pod("999", "10.1.2.5")],
        "job-name=b": [pod("aaa", "10.1.2.6")],
        "job-name=ps": [pod("ps-1", "10.1.2.1")],
    }
    jobs = {"worker": ["job-name=a", "job-name=b"], "ps": ["job-name=ps"]}

    assert make_resolver(jobs).cluster_spec() == ClusterSpec(
        {
            "worker": ["10.1.2.5:8470", "10.1.2.3:8470", "10.1.2.4:8470", "10.1.2.6:8470"],
            "ps": ["10.1.2.1:8470"],
        }
    )


def test_the_pods_of_an_indexed_job_come_in_the_order_of_their_index(kubernetes_api, make_resolver):
    kubernetes_api.pods["job-name=tensorflow"] = [
        pod("train-10-x", "10.0.0.10", index=10),
        pod("train-9-y", "10.0.0.9", index=9),
    ]

    assert make_resolver().cluster_spec().job_tasks("worker") == ["10.0.0.9:8470", "10.0.0.10:8470"]


def test_a_pod_that_is_not_running_is_an_error(kubernetes_api, make_resolver):
    kubernetes_api.pods["job-name=tensorflow"] = [pod("abc", "10.1.2.3", phase="Pending")]

    with pytest.raises(RuntimeError, match='Pod "abc" is not running; phase: "Pending"'):
        make_resolver().cluster_spec()


def test_an_api_that_refuses_is_an_error(kubernetes_api, make_resolver):
    status = {"kind": "Status", "status": "Failure", "reason": "Forbidden", "code": 403}
    kubernetes_api.routes["GET /api/v1/pods"] = lambda _: (403, status)

    with pytest.raises(CloudError, match=r"'job-name=tensorflow'.*to list pods"):
        make_resolver().cluster_spec()


def test_the_task_is_what_it_was_set_to(kubernetes_api, make_resolver):
    kubernetes_api.pods["job-name=tensorflow"] = [pod("a", "10.0.0.1"), pod("b", "10.0.0.2")]
    resolver = make_resolver()

    assert (resolver.task_type, resolver.task_id, resolver.master()) == (None, None, "")
    resolver.task_type, resolver.task_id = "worker", 1
    assert (resolver.master(), resolver.process_id) == ("grpc://10.0.0.2:8470", 1)
    assert resolver.master("worker", 0, "http") == "http://10.0.0.1:8470"


def test_without_the_client_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    monkeypatch.setitem(sys.modules, "kubernetes.client", None)
    resolver = KubernetesClusterResolver()

    with pytest.raises(ImportError, match=r"stratagem\[kubernetes\]"):
        resolver.cluster_spec()


@pytest.mark.peer("kubernetes")
@pytest.mark.parametrize("location", list(KubernetesExecutableLocation))
def test_a_machine_without_kubernetes_says_so(monkeypatch, tmp_path, location):
    importlib.import_module("kubernetes.config")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))

    with pytest.raises(CloudError, match=location.name):
        KubernetesClusterResolver(executable_location=location).cluster_spec()


def test_the_location_is_checked():
    with pytest.raises(ValueError, match="got 'cloud'"):
        KubernetesClusterResolver(executable_location="cloud")
