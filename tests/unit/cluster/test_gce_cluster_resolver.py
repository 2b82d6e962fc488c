"""Against a local server that speaks the Compute Engine API's JSON."""

import itertools
import re

import pytest

from stratagem._src.cluster import (
    CloudError,
    CloudResourceNotFoundError,
    ClusterSpec,
    GCEClusterResolver,
    UnionResolver,
)

ZONE = "/compute/v1/projects/test-project/zones/us-east1-d"
INSTANCES = {
    "trainer-a": ("RUNNING", "10.0.0.4"),
    "trainer-b": ("TERMINATED", "10.0.0.9"),
    "trainer-c": ("RUNNING", "10.0.0.2"),
    "trainer-d": ("RUNNING", "10.0.0.3"),
    "trainer-e": ("STAGING", "10.0.0.8"),
    "trainer-f": ("RUNNING", "10.0.0.1"),
}


@pytest.fixture
def compute(google):
    """The API with one instance group, two instances to a page."""

    def list_instances(request):
        names = sorted(INSTANCES)
        if request.body == {"instanceState": "RUNNING"}:
            names = [name for name in names if INSTANCES[name][0] == "RUNNING"]
        start = int(request.query.get("pageToken", "page-0").removeprefix("page-"))
        root = "https://www.googleapis.com" + ZONE
        page = {
            "kind": "compute#instanceGroupsListInstances",
            "id": "projects/test-project/zones/us-east1-d/instanceGroups/trainers",
            "items": [
                {"instance": f"{root}/instances/{name}", "status": INSTANCES[name][0]}
                for name in names[start : start + 2]
            ],
            "selfLink": f"{root}/instanceGroups/trainers/listInstances",
        }
        if start + 2 < len(names):
            page["nextPageToken"] = f"page-{start + 2}"
        return 200, page

    def get_instance(request):
        name = request.path.rsplit("/", 1)[-1]
        status, address = INSTANCES[name]
        return 200, {
            "kind": "compute#instance",
            "name": name,
            "status": status,
            "networkInterfaces": [{"name": "nic0", "networkIP": address}],
        }

    google.routes[f"POST {ZONE}/instanceGroups/trainers/listInstances"] = google.authorized(
        list_instances
    )
    google.routes[f"GET {ZONE}/instances/.*"] = google.authorized(get_instance)
    return google


def resolver_of(server, **settings):
    arguments = {
        "project": "test-project",
        "zone": "us-east1-d",
        "instance_group": "trainers",
        "port": 8470,
        "api_url": server.url,
        **settings,
    }
    return GCEClusterResolver(**arguments)


def test_the_running_instances_of_all_pages_are_the_cluster(compute):
    resolver = resolver_of(compute, task_id=1)

    assert resolver.cluster_spec() == ClusterSpec(
        {"worker": ["10.0.0.1:8470", "10.0.0.2:8470", "10.0.0.3:8470", "10.0.0.4:8470"]}
    )
    bodies = [request.body for request in compute.requests if request.method == "POST"]
    assert bodies == [{"instanceState": "RUNNING"}] * 2
    assert resolver.master() == "grpc://10.0.0.2:8470"
    assert (resolver.coordinator_address, resolver.process_id) == ("10.0.0.1:8470", 1)


def test_it_asks_again_each_time(compute, monkeypatch):
    resolver = resolver_of(compute)
    before = resolver.num_processes

    monkeypatch.setitem(INSTANCES, "trainer-b", ("RUNNING", "10.0.0.9"))
    assert resolver.num_processes == before + 1


def test_an_instance_that_stopped_after_it_was_listed_is_left_out(compute):
    listed = compute.routes[f"POST {ZONE}/instanceGroups/trainers/listInstances"]

    def one_has_stopped(request):
        status, page = listed(request)
        page["items"][0]["status"] = "STOPPING"
        return status, page

    compute.routes[f"POST {ZONE}/instanceGroups/trainers/listInstances"] = one_has_stopped
    assert resolver_of(compute).num_processes == 2


def test_jobs_of_several_groups_form_a_union(compute):
    union = UnionResolver(
        resolver_of(compute), resolver_of(compute, task_type="ps", port=2222, task_id=0)
    )

    assert union.cluster_spec().jobs == ["worker", "ps"]
    assert union.cluster_spec().task_address("ps", 0) == "10.0.0.1:2222"


def test_a_group_without_running_instances_is_an_error(compute):
    route = f"POST {ZONE}/instanceGroups/trainers/listInstances"
    compute.routes[route] = lambda _: (200, {"kind": "compute#instanceGroupsListInstances"})

    with pytest.raises(CloudError, match="got none in 'trainers'"):
        resolver_of(compute).cluster_spec()


def test_an_instance_without_an_address_is_an_error(compute):
    compute.routes[f"GET {ZONE}/instances/.*"] = lambda _: (200, {"status": "RUNNING"})

    with pytest.raises(CloudError, match="internal address, got none for 'trainer-a'"):
        resolver_of(compute).cluster_spec()


def test_ipv6_addresses_get_brackets(compute):
    numbers = itertools.count(7)

    def only_ipv6(_):
        return 200, {"networkInterfaces": [{"ipv6Address": f"2600:1900::{next(numbers)}"}]}

    compute.routes[f"GET {ZONE}/instances/.*"] = only_ipv6

    address = resolver_of(compute).cluster_spec().task_address("worker", 0)
    assert re.fullmatch(r"\[2600:1900::\d+\]:8470", address)


def test_a_group_that_does_not_exist_is_named(compute):
    with pytest.raises(CloudResourceNotFoundError, match=r"instanceGroups/others.*was not found"):
        resolver_of(compute, instance_group="others").cluster_spec()


def test_what_the_api_says_against_it_is_shown(compute):
    message = "Required 'compute.instanceGroups.list' permission"
    compute.routes = {".*": lambda _: (403, {"error": {"code": 403, "message": message}})}

    with pytest.raises(CloudError, match=f"status 403: {re.escape(message)}"):
        resolver_of(compute, credentials=None).cluster_spec()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((500, "<html>oops</html>"), "status 500: <html>oops"),
        ((503, ""), "status 503: no explanation"),
        ((200, "not json"), "JSON object, got 'not json'"),
        ((200, [1]), "JSON object"),
    ],
)
def test_an_api_that_fails_is_an_error(compute, answer, said):
    compute.routes = {".*": lambda _: answer}

    with pytest.raises(CloudError, match=said):
        resolver_of(compute, credentials=None).cluster_spec()


def test_a_server_that_does_not_answer_is_an_error(stand_in):
    closed = stand_in.url.rsplit(":", 1)[0] + ":1"

    with pytest.raises(CloudError, match="could not be read"):
        resolver_of(stand_in, credentials=None, api_url=closed).cluster_spec()


def test_a_malformed_metadata_host_is_an_error(compute, monkeypatch):
    monkeypatch.setenv("GCE_METADATA_HOST", "not a host")

    with pytest.raises(CloudError, match="could not be read"):
        resolver_of(compute).cluster_spec()


def test_the_metadata_server_is_not_asked_through_a_proxy(compute, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "")
    resolver = resolver_of(compute)

    with pytest.raises(CloudError, match="listInstances could not be read"):
        resolver.cluster_spec()
    assert [request.path for request in compute.requests] == [
        "/computeMetadata/v1/instance/service-accounts/default/token"
    ]


def test_credentials_are_used_as_given(compute):
    assert resolver_of(compute, credentials=lambda: compute.token).num_processes == 4
    with pytest.raises(CloudError, match="status 401"):
        resolver_of(compute, credentials=None).cluster_spec()
    with pytest.raises(TypeError, match="got int"):
        resolver_of(compute, credentials=3)


@pytest.mark.parametrize("shape", [lambda t: "no json " + t, lambda t: {"token": t}, list])
def test_a_token_is_never_shown(compute, shape):
    compute.routes["GET /computeMetadata/v1/.*"] = lambda _: (200, shape(compute.token))

    with pytest.raises(CloudError, match="access_token") as caught:
        resolver_of(compute).cluster_spec()
    assert compute.token not in str(caught.value)


def test_a_token_leaves_the_machine_only_over_https(compute):
    with pytest.raises(CloudError, match=r"must be sent over https, got http://compute\.example"):
        resolver_of(compute, api_url="http://compute.example").cluster_spec()


def test_a_token_does_not_follow_a_redirect(compute):
    moved = compute.url + "/elsewhere"
    compute.routes[f"POST {ZONE}/.*/listInstances"] = lambda _: (302, moved)
    compute.routes = dict(reversed(compute.routes.items()))

    with pytest.raises(CloudError, match="status 302"):
        resolver_of(compute).cluster_spec()
    assert all(request.path != "/elsewhere" for request in compute.requests)


def test_a_service_of_googles_client_library_is_used_instead():
    calls = []

    class Call:
        def __init__(self, answer):
            self._answer = answer

        def execute(self):
            return self._answer

    class Service:
        def instanceGroups(self):  # noqa: N802
            return self

        def instances(self):
            return self

        def listInstances(self, **asked):  # noqa: N802
            calls.append(asked)
            return Call({"items": [{"instance": "https://gce.example.com/res/one"}]})

        def listInstances_next(self, previous_request, previous_response):  # noqa: N802
            is_first = previous_response["items"][0]["instance"].endswith("one")
            second = {"items": [{"instance": "https://gce.example.com/res/two"}]}
            return Call(second) if is_first else None

        def get(self, instance, **_):
            address = {"one": "10.0.0.2", "two": "10.0.0.1"}[instance]
            return Call({"networkInterfaces": [{"networkIP": address}]})

    resolver = GCEClusterResolver("p", "z", "g", 1, credentials=None, service=Service())

    assert resolver.cluster_spec().job_tasks("worker") == ["10.0.0.1:1", "10.0.0.2:1"]
    assert calls[0]["instanceGroup"] == "g"
    assert calls[0]["body"] == {"instanceState": "RUNNING"}


def test_the_task_type_cannot_be_reset_but_the_rest_can(stand_in):
    resolver = resolver_of(stand_in, task_type="trainer")

    resolver.task_id, resolver.rpc_layer = 2, "http"

    assert (resolver.task_type, resolver.task_id, resolver.rpc_layer) == ("trainer", 2, "http")
    with pytest.raises(RuntimeError, match="cannot reset the task_type"):
        resolver.task_type = "worker"
