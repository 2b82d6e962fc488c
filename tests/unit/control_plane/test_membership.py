"""The meeting point and its clients, over real sockets."""

import json
import os
import socket
import threading
import time
from pathlib import Path

import psutil
import pytest

from stratagem._src.cluster.address import Address
from stratagem._src.cluster.errors import LaunchError, RendezvousError
from stratagem._src.cluster.reserved_ports import ReservedPorts
from stratagem._src.collective_backends.hosts.host_link import CONNECTION_LOST
from stratagem._src.collective_backends.shared_memory.local_group import ABORTED, PEER_EXITED
from stratagem._src.control_plane import diagnosis, failure_detector, membership_client
from stratagem._src.control_plane.failure_detector import FailureDetector
from stratagem._src.control_plane.identities import MEMBERSHIP_SERVER
from stratagem._src.control_plane.membership_client import MembershipClient
from stratagem._src.control_plane.membership_server_process import MembershipServerProcess
from stratagem._src.control_plane.relay import Relay, serve_relay
from stratagem._src.control_plane.worker_status import IDLE, PeerView, WorkerStatus
from stratagem._src.core.errors import (
    BackendStartedError,
    PermissionDeniedError,
    ReplicaMismatchError,
    UnauthenticatedError,
    UnavailableError,
)
from stratagem._src.jax_compat import distributed_runtime as jax_runtime
from stratagem._src.mesh.process_monitor import ProgramLine
from stratagem._src.transport import Credentials, Listener

CREDENTIALS = Credentials(secret="correct horse battery staple")
OTHERS = Credentials(secret="another secret of mine")


class Meeting:
    def __init__(self, address, num_workers):
        self.address = address
        self.num_workers = num_workers
        self.clients = []
        self.watches = []

    def join(self, worker, credentials=CREDENTIALS):
        client = MembershipClient(self.address, worker, self.num_workers, credentials, timeout=20)
        self.clients.append(client)
        return client

    def join_all(self):
        clients = [self.join(worker) for worker in range(self.num_workers)]
        for client in clients:
            client.wait_for_change(lambda client=client: client.start is not None, 20)
        return clients


@pytest.fixture
def secret(monkeypatch):
    """The meeting point finds its credentials in the environment."""
    monkeypatch.setenv("STRATAGEM_CLUSTER_SECRET", CREDENTIALS.secret)


@pytest.fixture
def meeting(secret):
    with ReservedPorts(1) as ports:
        address = Address("127.0.0.1", next(iter(ports)))
        host = MembershipServerProcess(address, 2, CREDENTIALS)
        process = host.process
        meeting = Meeting(address, 2)
        meeting.process = process
        try:
            yield meeting
            for watch in meeting.watches:
                watch.leave("the test is over", wait_seconds=0)
            for client in meeting.clients:
                client.close()
            host.release()
            assert ended(host) == 0
        finally:
            process.kill()


def ended(host, seconds=20.0):
    """Waits for the end of the membership server and returns its exit code."""
    try:
        return psutil.Process(host.process.pid).wait(seconds)
    except psutil.NoSuchProcess:  # the host's own thread has waited for it already
        return host.process.returncode


def watches(meeting, timeout=20.0):
    names = ["worker 0", "worker 1"]
    clients = meeting.join_all()
    meeting.watches = [
        FailureDetector(client, i, names, timeout) for i, client in enumerate(clients)
    ]
    return meeting.watches


def poll(condition, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.01)


def both(first, second):
    """Returns what two calls in threads of their own return or raise."""
    outcomes = [None, None]

    def call(index, fn):
        try:
            outcomes[index] = fn()
        except Exception as error:
            outcomes[index] = error

    threads = [threading.Thread(target=call, args=item) for item in enumerate((first, second))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return outcomes


def test_workers_start_when_all_are_there(meeting):
    first = meeting.join(0)
    first.wait_for_change(lambda: not first.views()[0].absent, 20)
    assert first.start is None
    assert [view.absent for view in first.views()] == [False, True]
    meeting.join(1)
    first.wait_for_change(lambda: first.start is not None, 20)
    assert first.start["hosted"] is True


def test_a_wrong_secret_is_refused(meeting):
    with pytest.raises(UnauthenticatedError, match="does not know this task's cluster secret"):
        meeting.join(0, OTHERS)


def test_the_same_worker_twice_is_refused(meeting):
    meeting.join(1)
    with pytest.raises(RendezvousError, match="has already joined"):
        meeting.join(1)


def test_garbage_does_not_disturb(meeting):
    with socket.create_connection((meeting.address.host, meeting.address.port)) as stranger:
        stranger.sendall(b"\xff" * 4096)
    assert len(meeting.join_all()) == 2


def test_nobody_answers():
    with ReservedPorts(1) as ports, pytest.raises(UnavailableError, match="refused"):
        MembershipClient(Address("127.0.0.1", next(iter(ports))), 1, 2, CREDENTIALS, timeout=0.3)


def test_a_port_in_use_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = Address("127.0.0.1", taken.getsockname()[1])
        with pytest.raises(LaunchError, match=f"Cannot bind the leader's address {address}"):
            MembershipServerProcess(address, 2, CREDENTIALS)


def test_values_are_exchanged_in_the_order_of_the_workers(meeting):
    first, second = watches(meeting)
    values = both(
        lambda: [first.all_gather_object("a", i, "test") for i in range(3)],
        lambda: [second.all_gather_object("a", i + 10, "test") for i in range(3)],
    )
    assert values == [[[0, 10], [1, 11], [2, 12]]] * 2


def test_a_lost_worker_ends_an_exchange(meeting):
    first, second = watches(meeting)
    second._client.close()
    with pytest.raises(UnavailableError, match=r"worker 0 waited in test, but worker 1 is gone"):
        first.all_gather_object("a", 1, "test")
    with pytest.raises(UnavailableError, match="no longer usable since"):
        first.all_gather_object("a", 1, "test")


def test_a_membership_server_that_falls_silent_ends_an_exchange(meeting, monkeypatch):
    for module in (diagnosis, membership_client, failure_detector):
        monkeypatch.setattr(module, "HEARTBEAT_TIMEOUT_SECONDS", 1.5)
    _, second = watches(meeting)
    poll(lambda: not second.membership.views()[0].absent)
    server = psutil.Process(meeting.process.pid)
    server.suspend()  # its kernel still acknowledges what it is sent
    try:
        with pytest.raises(UnavailableError, match=r"worker 0 has sent no heartbeat for \d+ s"):
            second.all_gather_object("values", 1, "step")
        assert second.membership.is_lost
        assert second.has_lost_others
        assert second.unresponsive_workers() == {0}
    finally:
        server.resume()
    poll(lambda: not second.membership.is_lost)


def test_a_worker_that_leaves_ends_an_exchange(meeting):
    first, second = watches(meeting)
    second.leave("it had enough", wait_seconds=0)
    with pytest.raises(UnavailableError, match="worker 1 has left: it had enough"):
        first.all_gather_object("a", 1, "test")


def test_who_fails_because_of_another_lets_that_end_first(meeting, monkeypatch):
    monkeypatch.setattr(failure_detector, "_CULPRIT_SECONDS", 60.0)
    first, second = watches(meeting)
    second.leave("its program failed", wait_seconds=0)
    with pytest.raises(UnavailableError, match="its program failed"):
        first.all_gather_object("a", 1, "test")
    ended = threading.Timer(0.5, second._client.close)
    begun = time.monotonic()
    ended.start()
    first.leave("its program ended", wait_seconds=0)
    ended.join(10)
    assert 0.5 <= time.monotonic() - begun < 30


def test_a_worker_that_does_not_come_is_named_at_the_deadline(meeting):
    first, _ = watches(meeting, timeout=1.0)
    with pytest.raises(UnavailableError, match="worker 1 is alive but has not arrived"):
        first.all_gather_object("a", 1, "test")


def compare(watch, said="more", entries=(1,), topic="a", cancelled=lambda: False):
    return watch.compare(topic, 0, said, list(entries), "step 0", cancelled)


def test_workers_compare_what_they_have(meeting):
    first, second = watches(meeting)
    found = both(
        lambda: compare(first, entries=[4, 4, 4]), lambda: compare(second, "end", [4, 4, 3])
    )
    assert found == [(["more", "end"], 2)] * 2


def test_a_comparison_can_be_cancelled(meeting):
    first, _ = watches(meeting)
    assert compare(first, cancelled=lambda: True) is None
    assert not first.has_failed


def test_a_part_can_be_given_without_waiting_for_the_others(meeting):
    first, second = watches(meeting)
    second.contribute("a", 0, "process 1: it failed")
    assert compare(first) == (["more", "process 1: it failed"], 0)


def test_different_exchanges_are_told_apart(meeting):
    first, second = watches(meeting)
    both(
        lambda: first.all_gather_object("a", 1, "test"),
        lambda: second.all_gather_object("a", 2, "test"),
    )
    begun = time.monotonic()
    errors = both(
        lambda: first.before_launch("train()", "1"),
        lambda: second.all_gather_object("a", 1, "a save"),
    )
    assert time.monotonic() - begun < 15
    for error in errors:
        assert isinstance(error, ReplicaMismatchError)
        assert "worker 0 at train()" in str(error) or "worker 0 is at train()" in str(error)
        assert "worker 1 at a save" in str(error) or "worker 1 is at a save" in str(error)


def test_input_that_waits_alone_is_told_where_the_other_is(meeting):
    first, second = watches(meeting, timeout=3.0)
    errors = both(
        lambda: compare(first, topic="input"),
        lambda: second.before_launch("train()", "1"),
    )
    for error in errors:  # the later one is told why the other gave up
        assert "it is at train()" in str(error) or "its input waits for step 0" in str(error)


def test_workers_that_come_to_one_place_do_so_together(meeting):
    first, second = watches(meeting)
    for _ in range(2):
        assert (
            both(lambda: first.all_arrive("a", "a"), lambda: second.all_arrive("a", "a"))
            == [True] * 2
        )


def test_a_worker_is_alone_where_the_other_waits_elsewhere(meeting):
    first, second = watches(meeting)

    def alone_then_together(watch, *places):
        alone = [watch.all_arrive(place, place) for place in places]
        return alone, watch.all_gather_object("b", 1, "b")

    begun = time.monotonic()
    alone, together = both(
        lambda: alone_then_together(first, "x"), lambda: alone_then_together(second)
    )
    assert (alone, together) == (([False], [1, 1]), ([], [1, 1]))
    # Each has a place of its own, and then one with the other.
    alone, together = both(
        lambda: alone_then_together(first, "x", "both"),
        lambda: alone_then_together(second, "both", "y"),
    )
    assert (alone[0], together[0]) == ([False, True], [True, False])
    assert time.monotonic() - begun < 20


def test_a_lost_worker_is_not_waited_for_at_an_optional_place(meeting):
    first, second = watches(meeting)
    second.membership.close()
    with pytest.raises(UnavailableError, match="worker 1"):
        first.all_arrive("a", "a save")


def test_of_programs_with_one_name_the_first_line_that_differs_is_shown(meeting):
    first, second = watches(meeting)

    def program(*lines):
        return lambda: [ProgramLine(line, f"{line}  # place") for line in lines]

    errors = both(
        lambda: first.before_launch("f()", "1", program("a = x", "b = 2 * a", "c = b")),
        lambda: second.before_launch("f()", "2", program("a = x", "b = 3 * a", "c = b")),
    )
    for error in errors:
        assert isinstance(error, ReplicaMismatchError)
        assert "worker 0 has `b = 2 * a # place`; worker 1 has `b = 3 * a # place`" in str(error)
    errors = both(
        lambda: first.before_launch("f()", "1", program("a = x")),
        lambda: second.before_launch("f()", "2", program("a = x", "b = a")),
    )
    for error in errors:
        assert "worker 0 has `no such line`; worker 1 has `b = a # place`" in str(error)


def test_different_programs_are_told_apart_before_they_run(meeting):
    first, second = watches(meeting)
    errors = both(
        lambda: first.before_launch("train()", "1"), lambda: second.before_launch("test()", "2")
    )
    for error in errors:
        assert isinstance(error, ReplicaMismatchError)
        assert "worker 0 is about to run train(); worker 1 is about to run test()" in str(error)
    # Nothing has run, so they can go on.
    ran = both(
        lambda: [first.before_launch("train()", "1"), first.run(lambda: "done")],
        lambda: [second.before_launch("train()", "1"), second.run(lambda: "done")],
    )
    assert ran == [[None, "done"]] * 2


def test_only_a_change_of_program_is_talked_about(meeting):
    first, second = watches(meeting)
    both(lambda: first.before_launch("a", "1"), lambda: second.before_launch("a", "1"))
    first.run(lambda: None)
    first.before_launch("a", "1")  # worker 1 need not answer
    assert first.run(lambda: 5) == 5


def test_an_error_of_the_program_itself_is_raised_as_it_is(meeting):
    first, _ = watches(meeting)

    def broken():
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        first.run(broken)


@pytest.mark.parametrize("problem", [ABORTED, PEER_EXITED, CONNECTION_LOST])
def test_a_program_that_lost_the_others_says_why_they_are_gone(meeting, problem):
    """It is aborted, for example, when a thread of the input finds first that a worker has left."""
    first, second = watches(meeting)

    def lose_the_other():
        second.leave("its program failed with KeyError('mine')", wait_seconds=0)
        raise ValueError(f"ABORTED: {problem}")

    with pytest.raises(UnavailableError, match="has left: its program failed") as caught:
        first.run(lose_the_other)
    assert caught.value.__suppress_context__


def test_the_end_is_waited_for(meeting):
    first, second = watches(meeting)
    left = []

    def leave_late():
        time.sleep(0.5)
        left.append(1)
        second.leave("done", wait_seconds=10)

    def leave_early():
        first.leave("done", wait_seconds=10)
        return list(left)

    assert both(leave_early, leave_late)[0] == [1]


def test_the_meeting_point_outlives_its_host_and_ends_with_the_last_worker(secret, caplog):
    with ReservedPorts(1) as ports:
        address = Address("127.0.0.1", next(iter(ports)))
        host = MembershipServerProcess(address, 1, CREDENTIALS)
        client = MembershipClient(address, 0, 1, CREDENTIALS, timeout=20)
        host.release()
        with pytest.raises(psutil.TimeoutExpired):
            ended(host, 1.0)
        client.set_status(WorkerStatus(IDLE), send_now=True)
        assert not client.is_lost
        # The next leader can have the port, though this worker is still served.
        socket.create_server((address.host, address.port)).close()
        assert not client.is_lost
        client.close()
        assert ended(host) == 0
    assert not caplog.records


def test_an_unexpected_end_of_the_meeting_point_is_reported_with_what_it_said(secret, caplog):
    with ReservedPorts(1) as ports:
        host = MembershipServerProcess(Address("127.0.0.1", next(iter(ports))), 1, CREDENTIALS)
        client = MembershipClient(Address("127.0.0.1", next(iter(ports))), 0, 1, CREDENTIALS, 20)
        with socket.create_connection(("127.0.0.1", next(iter(ports)))) as stranger:
            stranger.sendall(b"\xff" * 4096)
        poll(lambda: "refused a connection" in caplog.text)
        host.process.kill()
        poll(lambda: "it exited with code -9" in caplog.text)
        last = caplog.records[-1].getMessage()
        assert "refused a connection from 127.0.0.1" in last
        poll(lambda: client.is_lost)
        client.close()
        host.release()


def test_without_a_secret_the_meeting_point_is_for_this_user_on_this_machine(monkeypatch, tmp_path):
    for variable in ("STRATAGEM_CLUSTER_SECRET", "STRATAGEM_CLUSTER_SECRET_FILE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    nothing = Credentials.from_environment()
    with pytest.raises(PermissionDeniedError, match="address must be loopback"):
        MembershipServerProcess(Address("worker0.example.com", 4321), 1, nothing)
    with ReservedPorts(1) as ports:
        [port] = ports
        host = MembershipServerProcess(Address("localhost", port), 1, nothing)
        [listening] = [
            connection.laddr
            for connection in psutil.Process(host.process.pid).net_connections("tcp")
            if connection.status == psutil.CONN_LISTEN
        ]
        assert listening == ("127.0.0.1", port)
        client = MembershipClient(Address("localhost", port), 0, 1, nothing, 20)
        client.close()
        host.release()
        assert ended(host) == 0
        assert (tmp_path / "stratagem" / "local-secret").stat().st_mode & 0o077 == 0


def test_the_secret_is_not_in_the_arguments_of_the_meeting_point(secret):
    with ReservedPorts(1) as ports:
        host = MembershipServerProcess(Address("127.0.0.1", next(iter(ports))), 1, CREDENTIALS)
        try:
            assert not any(CREDENTIALS.secret in part for part in host.process.args)
            assert host.process.args[-2:] == [
                "-m",
                "stratagem._src.control_plane.membership_server",
            ]
        finally:
            host.release()
            ended(host)


def test_what_nobody_waits_for_is_not_kept(meeting):
    first, second = watches(meeting)
    assert compare(first, cancelled=lambda: True) is None
    # It may be complete at once.
    assert compare(second, cancelled=lambda: True) in (None, (["more"], 1))
    clients = [watch._client for watch in (first, second)]
    assert [len(client._awaited) for client in clients] == [0, 0]
    # Both have come to the meeting point when this is complete.
    both(
        lambda: first.all_gather_object("b", 1, "test"),
        lambda: second.all_gather_object("b", 2, "test"),
    )
    assert [client._gathered for client in clients] == [{}, {}]
    clients[0].put("c", 1, is_awaited=False)
    clients[1].put("c", 2)
    assert clients[1].take("c", 20) == [1, 2]
    assert clients[0].take("c", 0.1) is None


def test_an_error_of_the_reader_is_raised_by_the_next_call(meeting, caplog):
    first, _ = meeting.join_all()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PeerView, "from_json", lambda view: 1 / 0)
        poll(lambda: first._lost)
    for call in (first.views, lambda: first.is_lost, lambda: first.put("a", 1)):
        with pytest.raises(ZeroDivisionError):
            call()
    assert "worker 0's connection to the membership server" in caplog.text


@pytest.mark.parametrize(
    "message",
    [
        {"status": {"phase": 1}},
        {"status": {"phase": "idle", "launched": "x", "at": "", "culprit": None, "reason": ""}},
        {"status": []},
        {"put": ["a"], "value": 1},
        {"withdraw": {}},
        {"leave": {"a": []}},
        {"peers": 1},
        {},
    ],
)
def test_what_a_worker_says_can_end_its_own_part_only(meeting, message):
    first, second = watches(meeting)
    second._client._stream.send(message)
    second._client._stream.send({"put": "c", "value": "\ud800"})
    first._client.put("c", float("nan"))
    poll(lambda: first._client._gathered or any(v.gone or v.left for v in first._client.views()))
    assert not first._client.is_lost


def test_a_relay_hides_the_end_of_the_service(tmp_path):
    path = str(tmp_path / "service")
    with socket.socket(socket.AF_UNIX) as service:
        service.bind(path)
        service.listen()
        listener = Listener(
            "127.0.0.1:0",
            CREDENTIALS,
            MEMBERSHIP_SERVER,
            lambda connection: serve_relay(connection, path),
        )
        listener.start()
        relay = Relay(Address.parse(listener.address), CREDENTIALS, 0)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(relay.address.removeprefix("unix:"))
            client.sendall(b"ping")
            served, _ = service.accept()
            assert served.recv(4) == b"ping"
            served.sendall(b"pong")
            assert client.recv(4) == b"pong"
            served.close()
            client.settimeout(0.3)
            with pytest.raises(TimeoutError):
                client.recv(1)
            client.sendall(b"anybody?")
        relay.close()
        listener.shutdown()


def test_nobody_else_reaches_a_relay():
    relay = Relay(Address("127.0.0.1", 1), CREDENTIALS, 0)
    folder = Path(relay.address.removeprefix("unix:")).parent
    assert folder.stat().st_mode & 0o077 == 0
    relay.close()
    assert not folder.exists()


def test_too_late_to_join():
    import jax

    jax.devices()
    with pytest.raises(BackendStartedError, match="before the JAX backend is initialized"):
        jax_runtime.check_not_started()


def test_jax_still_has_what_we_use_of_it():
    """If this fails, JAX has changed: see jax_runtime.py, which then falls back to ``initialize``."""
    from jax._src import distributed, xla_bridge
    from jaxlib import _jax

    assert callable(_jax.get_distributed_runtime_service)
    assert callable(xla_bridge.backends_are_initialized)
    state = distributed.global_state
    for name in ("client", "process_id", "num_processes", "coordinator_address"):
        assert hasattr(state, name)
    assert jax_runtime._make_client("127.0.0.1:1", 0) is not None


def test_the_environment_is_left_alone(meeting):
    before = json.dumps(dict(os.environ))
    watches(meeting)
    assert json.dumps(dict(os.environ)) == before


def test_an_error_of_its_own_leaves_a_worker_usable(meeting):
    first, second = watches(meeting)

    def broken():
        raise FloatingPointError("nan")

    with pytest.raises(FloatingPointError):
        first.run(broken)
    assert not first.has_failed
    assert (
        both(
            lambda: first.all_gather_object("a", 1, "x"),
            lambda: second.all_gather_object("a", 2, "x"),
        )
        == [[1, 2]] * 2
    )


def test_a_broken_connection_without_a_culprit_is_an_error_of_ours(meeting, monkeypatch):
    monkeypatch.setattr(
        "stratagem._src.control_plane.failure_detector.HEARTBEAT_TIMEOUT_SECONDS", -1.5
    )
    first, _ = watches(meeting)

    def broken():
        raise ValueError("UNKNOWN: Gloo all-reduce failed: Connection closed by peer")

    with pytest.raises(UnavailableError, match=r"lost the connection to another worker.*Gloo"):
        first.run(broken)
    with pytest.raises(UnavailableError, match=r"no longer usable since: .*lost the connection"):
        first.all_gather_object("a", 1, "x")
