"""Against a local server that speaks the Cloud TPU API's JSON. No test here needs a TPU."""

import jax
import pytest

from stratagem._src.cluster import (
    CloudError,
    CloudResourceNotFoundError,
    ClusterSpec,
    EnvironmentVariableError,
    TaskError,
    TPUClusterResolver,
    TPUSystemMetadata,
    UnsupportedTPUFeatureError,
)
from stratagem._src.cluster.resolvers.tpu_system_metadata import attached_devices

NODE = "projects/test-project/locations/us-central1-c/nodes/pod"
HOSTS = [{"ipAddress": f"10.2.3.{number}", "port": 8470} for number in (4, 5, 6)]
ADDRESSES = [f"10.2.3.{number}:8470" for number in (4, 5, 6)]


@pytest.fixture
def tpu_api(google, monkeypatch):
    google.node = {
        "name": NODE,
        "acceleratorType": "v3-24",
        "runtimeVersion": "tpu-ubuntu2204-base",
        "state": "READY",
        "health": "HEALTHY",
        "apiVersion": "V2",
        "networkEndpoints": HOSTS,
        "acceleratorConfig": {"type": "V3", "topology": "4x4"},
    }
    google.routes[f"GET /v2/{NODE}"] = google.authorized(lambda _: (200, google.node))
    monkeypatch.setenv("TPU_API_DISCOVERY_URL", google.url + "/$discovery/rest?version=v2")
    return google


def test_a_name_is_looked_up_in_the_project_and_zone_of_the_machine(tpu_api):
    resolver = TPUClusterResolver("pod")

    assert resolver.cluster_spec() == ClusterSpec({"worker": ADDRESSES})
    assert (resolver.master(), resolver.get_master()) == ("grpc://10.2.3.4:8470",) * 2
    assert resolver.master("worker", 2) == "grpc://10.2.3.6:8470"
    assert (resolver.get_job_name(), resolver.task_id) == ("worker", 0)
    assert resolver.get_coordination_service_leader() == "/job:worker/task:0"
    assert resolver.environment == ""


def test_a_project_and_zone_that_are_given_are_not_looked_up(tpu_api, monkeypatch):
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:1")
    resolver = TPUClusterResolver(
        ["pod"], "us-central1-c", "test-project", credentials=None, discovery_url=tpu_api.url
    )

    with pytest.raises(CloudError, match="status 401"):
        resolver.cluster_spec()
    assert tpu_api.requests[-1].path == f"/v2/{NODE}"


def test_the_hosts_start_as_jax_processes(tpu_api, monkeypatch):
    monkeypatch.setenv("TPU_WORKER_ID", "2")
    resolver = TPUClusterResolver("pod")

    assert resolver.coordinator_address == "10.2.3.4:8482"
    assert (resolver.process_id, resolver.num_processes) == (2, 3)
    monkeypatch.setenv("TPU_WORKER_ID", "3")
    with pytest.raises(TaskError, match=r"TPU hosts \(3\), got 3"):
        _ = resolver.process_id


def test_a_further_job_can_be_added(tpu_api):
    resolver = TPUClusterResolver(
        "pod", job_name="tpu", coordinator_name="coordinator", coordinator_address="10.1.1.1:1"
    )

    assert resolver.cluster_spec() == ClusterSpec({"tpu": ADDRESSES, "coordinator": ["10.1.1.1:1"]})
    with pytest.raises(ValueError, match="given together"):
        TPUClusterResolver("pod", coordinator_name="coordinator")


def test_version_1_of_the_api_has_a_single_address(tpu_api):
    tpu_api.node = {"state": "READY", "ipAddress": "10.1.2.3", "port": "8470"}

    assert TPUClusterResolver("pod").cluster_spec() == ClusterSpec({"worker": ["10.1.2.3:8470"]})


@pytest.mark.parametrize(
    ("node", "error", "said"),
    [
        ({"state": "CREATING"}, RuntimeError, "READY, got CREATING"),
        (
            {"state": "REPAIRING", "healthDescription": "out of memory"},
            RuntimeError,
            r"REPAIRING \(out of memory\)",
        ),
        ({}, RuntimeError, "got None"),
        ({"state": "READY"}, CloudError, "address for every host"),
        ({"state": "READY", "networkEndpoints": [{"ipAddress": "?"}]}, CloudError, "address"),
    ],
)
def test_a_tpu_that_is_not_ready_is_an_error(tpu_api, node, error, said):
    tpu_api.node = node

    with pytest.raises(error, match=said):
        TPUClusterResolver("pod").cluster_spec()


def test_a_tpu_that_does_not_exist_is_a_value_error(tpu_api):
    with pytest.raises(ValueError, match=r"nodes/other.*was not found"):
        TPUClusterResolver("other").cluster_spec()


@pytest.mark.parametrize("tpu", [[], ["one", "two"]])
def test_only_one_tpu_can_be_named(tpu):
    with pytest.raises(ValueError, match="one TPU"):
        TPUClusterResolver(tpu)


@pytest.mark.parametrize(
    ("variables", "hosts"),
    [
        (
            {"KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS": "grpc://10.0.0.5:8470,grpc://10.0.0.6:1"},
            ["10.0.0.5:8470", "10.0.0.6:1"],
        ),
        ({"TPU_WORKER_HOSTNAMES": "t-0.svc, t-1.svc"}, ["t-0.svc:8470", "t-1.svc:8470"]),
        ({"TPU_PROCESS_ADDRESSES": "a:8476,[::1]"}, ["a:8476", "[::1]:8470"]),
        ({"TPU_NAME": "pod"}, ADDRESSES),
        ({"TPU_CONFIG": '{"tpu_node_name": "pod"}'}, ADDRESSES),
    ],
)
def test_without_a_name_the_environment_is_asked(tpu_api, monkeypatch, variables, hosts):
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)

    assert TPUClusterResolver().cluster_spec() == ClusterSpec({"worker": hosts})
    assert TPUClusterResolver("").cluster_spec() == ClusterSpec({"worker": hosts})


def test_the_environment_is_asked_each_time(monkeypatch):
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "a")
    resolver = TPUClusterResolver()

    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "a,b")
    assert resolver.num_processes == 2


def test_tpu_config_tells_project_and_zone(tpu_api, monkeypatch):
    monkeypatch.setenv(
        "TPU_CONFIG", '{"tpu_node_name": "x", "project": "other", "zone": "europe-west4-a"}'
    )

    with pytest.raises(CloudResourceNotFoundError, match="projects/other/locations/europe-west4-a"):
        TPUClusterResolver().cluster_spec()


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("TPU_WORKER_HOSTNAMES", "a,,b", "TPU hosts separated by commas"),
        ("KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS", "grpc://a:b:c", "TPU hosts"),
        ("TPU_CONFIG", "{", "JSON such as"),
        ("TPU_CONFIG", "[]", "JSON such as"),
        ("TPU_CONFIG", '{"zone": "z"}', "tpu_node_name"),
    ],
)
def test_a_wrong_variable_is_named(monkeypatch, variable, value, said):
    monkeypatch.setenv(variable, value)

    with pytest.raises(EnvironmentVariableError, match=f"^{variable} must hold .*{said}"):
        TPUClusterResolver()


@pytest.mark.parametrize(
    "endpoints", ["10.0.0.2,10.0.0.3", "unknown:unknown:10.0.0.2,unknown:unknown:10.0.0.3"]
)
def test_a_tpu_machine_knows_its_hosts_from_its_metadata(stand_in, monkeypatch, endpoints):
    monkeypatch.setenv("GCE_METADATA_IP", stand_in.address)
    attributes = "GET /computeMetadata/v1/instance/attributes/"
    stand_in.routes = {
        attributes + "worker-network-endpoints": lambda _: (200, endpoints),
        attributes + "agent-worker-number": lambda _: (200, "1"),
    }
    resolver = TPUClusterResolver()

    assert resolver.cluster_spec() == ClusterSpec({"worker": ["10.0.0.2:8470", "10.0.0.3:8470"]})
    assert (resolver.process_id, resolver.num_processes) == (1, 2)
    assert resolver.master() == "grpc://10.0.0.2:8470"


def test_without_anything_a_name_is_asked_for(stand_in, monkeypatch):
    monkeypatch.setenv("GCE_METADATA_HOST", stand_in.address)

    with pytest.raises(ValueError, match="Please provide a TPU name"):
        TPUClusterResolver().cluster_spec()


def test_a_local_tpu_has_no_cluster():
    resolver = TPUClusterResolver("local")

    assert not resolver.cluster_spec()
    assert (resolver.master(), resolver.coordinator_address) == ("", None)
    assert (resolver.process_id, resolver.num_processes) == (0, 1)


def test_a_service_of_googles_client_library_is_used_instead(monkeypatch):
    asked = []

    class Service:
        def projects(self):
            return self

        locations = nodes = projects

        def get(self, name):
            asked.append(name)
            return self

        def execute(self):
            if asked[-1] != NODE:
                raise KeyError(asked[-1])
            return {"state": "READY", "networkEndpoints": HOSTS}

    place = {"zone": "us-central1-c", "project": "test-project", "service": Service()}

    assert TPUClusterResolver("pod", **place).num_processes == 3
    with pytest.raises(ValueError, match=r"Could not look up TPU .*nodes/other"):
        TPUClusterResolver("other", **place).cluster_spec()


def test_questions_without_a_counterpart_raise():
    resolver = TPUClusterResolver("local")

    with pytest.raises(UnsupportedTPUFeatureError, match=r"coords of jax\.devices"):
        resolver.set_tpu_topology(b"")
    with pytest.raises(NotImplementedError, match="device_kind"):
        _ = resolver.tpu_hardware_feature


@pytest.mark.skipif(jax.default_backend() == "tpu", reason="this machine has a TPU")
def test_a_machine_without_a_tpu_says_so():
    with pytest.raises(CloudError, match="must find a TPU"):
        TPUClusterResolver.connect("local")
    with pytest.raises(CloudError, match="must find a TPU"):
        TPUClusterResolver("local").get_tpu_system_metadata()
    assert TPUClusterResolver("local").num_accelerators() == {"TPU": 0}


def test_connecting_to_several_hosts_leaves_the_backend_to_the_strategy():
    resolver = TPUClusterResolver.connect("grpc://10.0.0.1:8470,grpc://10.0.0.2:8470")

    assert resolver.num_processes == 2


def test_facts_about_devices():
    devices = attached_devices("cpu")
    facts = TPUSystemMetadata.of_devices(devices)

    assert facts.devices == tuple(devices)
    assert (facts.num_cores, facts.num_hosts) == (len(devices), 1)
    assert facts.num_of_cores_per_host == len(devices)


def test_hosts_that_differ_are_an_error():
    class Device:
        def __init__(self, process_index):
            self.process_index = process_index

    with pytest.raises(CloudError, match=r"\{0: 2, 1: 1\} by host"):
        TPUSystemMetadata.of_devices([Device(0), Device(0), Device(1)])


def test_a_task_id_that_is_set_later():
    resolver = TPUClusterResolver("grpc://10.0.0.1:8470,grpc://10.0.0.2:8470")
    assert resolver.master() == "grpc://10.0.0.1:8470"
    resolver.task_id = 1
    assert (resolver.master(), resolver.process_id) == ("grpc://10.0.0.2:8470", 1)
    assert resolver.master("worker", 0) == "grpc://10.0.0.1:8470"
