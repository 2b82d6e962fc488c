"""The dashboard over real HTTP: what it shows, and to whom."""

import contextlib
import http.client
import json
import socket
import time
from urllib.parse import urlsplit

import pytest

from stratagem._src.cluster.address import Address
from stratagem._src.cluster.errors import LaunchError
from stratagem._src.core.errors import UnavailableError
from stratagem._src.telemetry.monitoring.collector import Collector
from stratagem._src.telemetry.monitoring.dashboard import page_server
from stratagem._src.telemetry.monitoring.dashboard.dashboard_server import (
    DashboardServer,
    PageAccess,
)
from stratagem._src.telemetry.monitoring.dashboard.page_request import PageRequest
from stratagem._src.telemetry.monitoring.dashboard_client import DashboardClient
from stratagem._src.telemetry.monitoring.monitored_jobs import (
    MonitoredJob,
    announce_job,
    monitored_jobs,
)
from stratagem._src.telemetry.monitoring.task_logs import TaskLogs

KEY = "the-key-of-the-dashboard"


@pytest.fixture
def collector():
    with Collector("127.0.0.1", "correct horse battery staple") as collector:
        collector.note("job_started", name="train")
        collector.note("attempt_started", attempt=0, tasks=["worker 0"])
        yield collector


@pytest.fixture
def logs():
    logs = TaskLogs()
    logs.add("worker 0", [(1.0, False, "epoch 1"), (2.0, True, "a WARNING")])
    return logs


@pytest.fixture
def serve(collector, logs):
    servers = []

    def serve(host):
        servers.append(DashboardServer(Address(host, 0), collector.view, KEY, logs.find))
        return servers[-1].__enter__()

    yield serve
    for server in servers:
        server.__exit__()


def get(server, path, **headers):
    """Returns status, headers and text of what a browser gets on this machine."""
    connection = http.client.HTTPConnection("127.0.0.1", urlsplit(server.link).port, timeout=30)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, answer.headers, text


def test_the_page_and_all_that_it_loads(serve):
    server = serve("127.0.0.1")
    status, headers, page = get(server, "/")
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert "default-src 'self'" in headers["Content-Security-Policy"]
    assert "http" not in page  # nothing comes from elsewhere
    for path in ("/page.js", "/logs.js", "/page.css"):
        assert path.strip("/") in page
        status, _, text = get(server, path)
        assert status == 200
        assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    assert get(server, "/../collector.py")[0] == 404


def test_what_it_knows_as_json(serve, collector):
    server = serve("127.0.0.1")
    status, headers, text = get(server, "/state")
    assert (status, headers["Content-Type"]) == (200, "application/json")
    view = json.loads(text)
    assert view["job"]["name"] == "train"
    assert [task["task"] for task in view["tasks"]] == ["worker 0"]
    collector.note("note", kind="warning", text="new")
    later = json.loads(get(server, f"/state?since={view['now']}")[2])
    assert [note["text"] for note in later["notes"]] == ["new"]
    for odd in ("x", "nan", "inf", "-1"):
        assert get(server, f"/state?since={odd}")[0] == 200


def test_only_looking_is_possible(serve):
    server = serve("127.0.0.1")
    connection = http.client.HTTPConnection("127.0.0.1", urlsplit(server.link).port, timeout=30)
    connection.request("POST", "/state", body=b"x")
    assert connection.getresponse().status == 501
    connection.close()


def test_a_page_from_elsewhere_cannot_make_a_browser_read_it(serve):
    server = serve("127.0.0.1")
    status, _, text = get(server, "/state", Host="evil.example")
    assert status == 421
    assert "train" not in text
    assert get(server, "/state", Host="localhost:1")[0] == 200


def test_beyond_loopback_it_needs_the_key(serve):
    server = serve("0.0.0.0")
    assert server.link.endswith(f"/?key={KEY}")
    wrong = {"Cookie": "stratagem_dashboard=wrong"}
    for path, headers in [
        ("/", {}),
        ("/state", {}),
        ("/page.js", {}),
        ("/?key=wrong", {}),
        ("/", wrong),
    ]:
        status, _, text = get(server, path, **headers)
        assert (status, "train" in text) == (401, False)
        assert KEY not in text
    assert get(server, "/state", Authorization=f"Bearer {KEY}")[0] == 200


@pytest.mark.parametrize("host", ["10.1.2.3", "worker0", "localhost", ""])
def test_the_key_is_what_counts_beyond_loopback(host):
    access = PageAccess("key", 8000, is_local=False)
    headers = {"Host": host}
    assert access.refuse(PageRequest.parse("/", headers)).status == 401
    assert access.refuse(PageRequest.parse("/?key=key", headers)) is None
    cookie = access.cookie().split(";")[0]
    assert access.refuse(PageRequest.parse("/state", {**headers, "Cookie": cookie})) is None
    assert access.refuse(PageRequest.parse("/", {**headers, "Cookie": "\udce4=;,x"})) is not None


def test_a_link_with_the_key_becomes_a_cookie(serve):
    server = serve("0.0.0.0")
    status, headers, _ = get(server, f"/?key={KEY}")
    assert (status, headers["Location"]) == (303, "/")
    assert "HttpOnly; SameSite=Strict" in headers["Set-Cookie"]


def lines(server, fields="", **headers):
    status, _, text = get(server, f"/logs?{fields}", **headers)
    return json.loads(text)["lines"] if status == 200 else status


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_what_tasks_print_is_for_those_with_the_key(serve, host):
    server = serve(host)
    assert server.link.endswith(f"/?key={KEY}")
    assert lines(server) == 401
    assert lines(server, Authorization="Bearer wrong") == 401
    with_key = {"Authorization": f"Bearer {KEY}"}
    assert [line["text"] for line in lines(server, **with_key)] == ["epoch 1", "a WARNING"]
    [found] = lines(server, "text=warning&task=worker+0", **with_key)
    assert found == {
        "number": 1,
        "time": 2.0,
        "task": "worker 0",
        "is_error": True,
        "text": "a WARNING",
    }
    assert lines(server, "task=worker+1", **with_key) == []
    assert lines(server, "after=1", **with_key) == []
    assert len(lines(server, "after=x", **with_key)) == 2


def test_cookies_of_several_jobs_on_this_machine_do_not_disturb_each_other(serve):
    servers = [serve("127.0.0.1"), serve("127.0.0.1")]
    cookies = []
    for server in servers:
        _, headers, _ = get(server, f"/?key={KEY}")
        cookies.append(headers["Set-Cookie"].split(";")[0])
    assert cookies[0].split("=")[0] != cookies[1].split("=")[0]
    other = "stratagem_dashboard_1=key-of-another-job"
    for server in servers:
        assert len(lines(server, Cookie="; ".join([other, *cookies]))) == 2
    assert lines(servers[0], Cookie=other) == 401
    # A wrong key in the link is not made a cookie, and the page of this machine is shown all the same.
    assert get(servers[0], "/?key=wrong")[0] == 200


def test_recorded_runs_have_no_logs():
    with DashboardServer(Address("127.0.0.1", 0), lambda since: {}, key="") as server:
        assert "key" not in server.link
        assert lines(server) == 404
        assert lines(server, Authorization="Bearer ") == 404


def test_a_port_in_use_is_refused(serve):
    port = urlsplit(serve("127.0.0.1").link).port
    with pytest.raises(LaunchError, match="free port"):
        DashboardServer(Address("127.0.0.1", port), lambda since: {}, KEY)


def test_who_says_nothing_holds_up_nobody(serve):
    server = serve("127.0.0.1")
    silent = [socket.create_connection(("127.0.0.1", urlsplit(server.link).port)) for _ in range(5)]
    assert get(server, "/state")[0] == 200
    for connection in silent:
        connection.close()


BAD_URLS = ["http://[", "http://[x]/", "/state?" + "&".join(["a=1"] * 100)]


def send(server, data):
    """Returns all that comes back for bytes that are sent."""
    place = ("127.0.0.1", urlsplit(server.link).port)
    with socket.create_connection(place, timeout=30) as connected:
        connected.sendall(data)
        with connected.makefile("rb") as answer:
            return answer.read()


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_bad_url_is_refused_and_not_logged(serve, host, caplog):
    server = serve(host)
    for url in BAD_URLS:
        answer = send(server, f"GET {url} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        assert answer.startswith(b"HTTP/1.0 400 ")
    server.__exit__()
    assert not caplog.records


def test_an_unexpected_error_is_logged_once_a_second_at_most(monkeypatch, caplog):
    def fail(since):
        raise LookupError("nobody expected this " + 10_000 * "x")

    with DashboardServer(Address("127.0.0.1", 0), fail, KEY) as server:
        begun = time.monotonic()
        for _ in range(20):
            assert send(server, b"GET /state HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n") == b""
        seconds = time.monotonic() - begun
    assert "LookupError: nobody expected this" in caplog.text
    assert len(caplog.records) <= seconds + 2
    assert len(caplog.text) < 1000 * len(caplog.records)


def test_a_request_has_one_deadline_however_often_it_sends(serve, monkeypatch):
    monkeypatch.setattr(page_server, "_REQUEST_TIMEOUT", 0.5)
    server = serve("127.0.0.1")
    place = ("127.0.0.1", urlsplit(server.link).port)
    with socket.create_connection(place, timeout=0.05) as slow:
        deadline = time.monotonic() + 20
        while True:
            assert time.monotonic() < deadline
            try:
                slow.sendall(b"x")
                if slow.recv(1) == b"":
                    break
            except TimeoutError:
                continue
            except OSError:
                break


def test_slow_requests_keep_nobody_out(serve):
    server = serve("127.0.0.1")
    place = ("127.0.0.1", urlsplit(server.link).port)
    slow = [socket.create_connection(place, timeout=30) for _ in range(32)]
    try:
        for connected in slow:
            connected.sendall(b"GET /state HTTP/1.1\r\nX: ")
        deadline = time.monotonic() + 8  # before the slow ones have taken too long
        while True:
            assert time.monotonic() < deadline
            with contextlib.suppress(OSError):
                if get(server, "/state")[0] == 200:
                    break
    finally:
        for connected in slow:
            connected.close()


def test_a_request_without_end_is_cut_off(serve):
    server = serve("127.0.0.1")
    assert b" 414 " in send(server, b"GET /" + 70_000 * b"x").splitlines()[0]


# --- who asks from a terminal ---------------------------------------------------------------------------


def test_a_client_keeps_what_was_noted_before(serve, collector):
    client = DashboardClient(serve("127.0.0.1").link)
    collector.note("note", kind="warning", text="first")
    client.view()
    collector.note("note", kind="warning", text="second")
    assert [note["text"] for note in client.view()["notes"]] == ["first", "second"]


def test_a_client_shows_the_key_that_its_link_has(serve):
    port = urlsplit(serve("0.0.0.0").link).port
    assert DashboardClient(f"http://127.0.0.1:{port}/?key={KEY}").view()["job"]["name"] == "train"
    with pytest.raises(LaunchError, match="needs a key"):
        DashboardClient(f"127.0.0.1:{port}").view()


@pytest.mark.parametrize(
    "link", ["", "ftp://host:1/", "http://host:1/page", "host/x", "[::1", "host:x"]
)
def test_what_is_no_link_is_refused(link):
    with pytest.raises(LaunchError, match="prints"):
        DashboardClient(link)


def test_nobody_there_is_said():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(UnavailableError, match="No dashboard responds"):
            DashboardClient(f"127.0.0.1:{unused.getsockname()[1]}").view()


def test_jobs_are_found_while_their_launchers_live(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert monitored_jobs() == []
    here = MonitoredJob.of_this_process("train", "http://127.0.0.1:1/?key=x")
    gone = here._replace(launcher=2**22 + 1)  # no such process can be
    with announce_job(here), announce_job(gone):
        assert monitored_jobs() == [here]
        [path] = (tmp_path / "stratagem" / "jobs").iterdir()  # the other's was removed
        assert path.stat().st_mode & 0o077 == 0
        (path.parent / "broken.json").write_text("{")
        assert monitored_jobs() == [here]
    assert monitored_jobs() == []


def test_jobs_of_other_machines_in_a_shared_home_are_left_alone(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    there = MonitoredJob("train", "http://127.0.0.1:1/", 2**22 + 1, "another-host")
    with announce_job(there):
        assert monitored_jobs() == []
        assert len(list((tmp_path / "stratagem" / "jobs").iterdir())) == 1
