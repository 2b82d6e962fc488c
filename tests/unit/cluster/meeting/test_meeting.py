"""The meeting point and its clients, over real sockets."""

import json
import os
import socket
import subprocess
import threading
import time

import pytest

from stratagem.cluster.address import Address
from stratagem.cluster.errors import LaunchError, RendezvousError
from stratagem.cluster.launch.held_ports import HeldPorts
from stratagem.cluster.meeting import jax_runtime
from stratagem.cluster.meeting.client import MeetingClient
from stratagem.cluster.meeting.host import host_meeting
from stratagem.cluster.meeting.relay import Relay
from stratagem.cluster.meeting.watch import ClusterWatch
from stratagem.cluster.meeting.worker_status import IDLE, WorkerStatus
from stratagem.core.errors import BackendStartedError, ReplicaMismatchError, UnavailableError

SECRET = "correct horse battery staple"


class Meeting:
    def __init__(self, address, num_workers):
        self.address = address
        self.num_workers = num_workers
        self.clients = []
        self.watches = []

    def join(self, worker, secret=SECRET):
        client = MeetingClient(self.address, worker, self.num_workers, secret, timeout=20)
        self.clients.append(client)
        return client

    def join_all(self):
        clients = [self.join(worker) for worker in range(self.num_workers)]
        for client in clients:
            client.wait_for_change(lambda client=client: client.start is not None, 20)
        return clients


@pytest.fixture
def meeting():
    with HeldPorts(1) as ports:
        address = Address("127.0.0.1", next(iter(ports)))
        process = host_meeting(address, 2, SECRET)
        meeting = Meeting(address, 2)
        try:
            yield meeting
            for watch in meeting.watches:
                watch.leave("the test is over", wait_seconds=0)
            for client in meeting.clients:
                client.close()
            process.stdin.close()
            process.wait(20)
        finally:
            process.kill()
            process.wait()


def watches(meeting, timeout=20.0):
    names = ["worker 0", "worker 1"]
    clients = meeting.join_all()
    meeting.watches = [ClusterWatch(client, i, names, timeout) for i, client in enumerate(clients)]
    return meeting.watches


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
    assert isinstance(first.start["service_port"], int)


def test_a_wrong_secret_is_refused(meeting):
    with pytest.raises(RendezvousError, match="does not know the job's secret"):
        meeting.join(0, secret="another secret of mine")


def test_the_same_worker_twice_is_refused(meeting):
    meeting.join(1)
    with pytest.raises(RendezvousError, match="here already"):
        meeting.join(1)


def test_garbage_does_not_disturb(meeting):
    with socket.create_connection((meeting.address.host, meeting.address.port)) as stranger:
        stranger.sendall(b"\xff" * 4096)
    assert len(meeting.join_all()) == 2


def test_nobody_answers():
    with HeldPorts(1) as ports, pytest.raises(OSError, match="refused"):
        MeetingClient(Address("127.0.0.1", next(iter(ports))), 1, 2, SECRET, timeout=0.3)


def test_a_port_in_use_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = Address("127.0.0.1", taken.getsockname()[1])
        with pytest.raises(LaunchError, match=f"must listen on its address {address}"):
            host_meeting(address, 2, SECRET)


def test_values_are_exchanged_in_the_order_of_the_workers(meeting):
    first, second = watches(meeting)
    values = both(
        lambda: [first.exchange("a", i, "test") for i in range(3)],
        lambda: [second.exchange("a", i + 10, "test") for i in range(3)],
    )
    assert values == [[[0, 10], [1, 11], [2, 12]]] * 2


def test_a_lost_worker_ends_an_exchange(meeting):
    first, second = watches(meeting)
    second._client.close()
    with pytest.raises(UnavailableError, match=r"worker 0 waited in test, but worker 1 is gone"):
        first.exchange("a", 1, "test")
    with pytest.raises(UnavailableError, match="not usable any more since"):
        first.exchange("a", 1, "test")


def test_a_worker_that_leaves_ends_an_exchange(meeting):
    first, second = watches(meeting)
    second.leave("it had enough", wait_seconds=0)
    with pytest.raises(UnavailableError, match="worker 1 has left: it had enough"):
        first.exchange("a", 1, "test")


def test_a_worker_that_does_not_come_is_named_at_the_deadline(meeting):
    first, _ = watches(meeting, timeout=1.0)
    with pytest.raises(UnavailableError, match="worker 1 is alive but has not come"):
        first.exchange("a", 1, "test")


def test_an_exchange_can_be_cancelled(meeting):
    first, _ = watches(meeting)
    assert first.exchange("a", 1, "test", in_sequence=False, cancelled=lambda: True) == []
    assert not first.has_failed


def test_different_programs_are_told_apart_before_they_run(meeting):
    first, second = watches(meeting)
    errors = both(
        lambda: first.before_launch("train()", "1"), lambda: second.before_launch("test()", "2")
    )
    for error in errors:
        assert isinstance(error, ReplicaMismatchError)
        assert "worker 0 is to run train(); worker 1 is to run test()" in str(error)
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


def test_the_meeting_point_outlives_its_host_and_ends_with_the_last_worker():
    with HeldPorts(1) as ports:
        address = Address("127.0.0.1", next(iter(ports)))
        process = host_meeting(address, 1, SECRET)
        client = MeetingClient(address, 0, 1, SECRET, timeout=20)
        process.stdin.close()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1.0)
        client.set_status(WorkerStatus(IDLE), tell_now=True)
        assert not client.is_lost
        client.close()
        assert process.wait(20) == 0


def test_a_relay_hides_the_end_of_the_service():
    with socket.create_server(("127.0.0.1", 0)) as service:
        relay = Relay(*service.getsockname())
        host, port = relay.address.split(":")
        with socket.create_connection((host, int(port)), timeout=5) as client:
            client.sendall(b"ping")
            served, _ = service.accept()
            assert served.recv(4) == b"ping"
            served.sendall(b"pong")
            assert client.recv(4) == b"pong"
            served.close()
            client.settimeout(0.3)
            with pytest.raises(TimeoutError):
                client.recv(1)


def test_too_late_to_join():
    import jax

    jax.devices()
    with pytest.raises(BackendStartedError, match="before anything computes"):
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
        both(lambda: first.exchange("a", 1, "x"), lambda: second.exchange("a", 2, "x"))
        == [[1, 2]] * 2
    )


def test_a_broken_connection_without_a_culprit_is_an_error_of_ours(meeting, monkeypatch):
    monkeypatch.setattr("stratagem.cluster.meeting.watch.SILENT_SECONDS", -1.5)
    first, _ = watches(meeting)

    def broken():
        raise ValueError("UNKNOWN: Gloo all-reduce failed: Connection closed by peer")

    with pytest.raises(UnavailableError, match=r"lost the connection to another worker.*Gloo"):
        first.run(broken)
    with pytest.raises(UnavailableError, match=r"not usable any more since: .*lost the connection"):
        first.exchange("a", 1, "x")
