"""Who gets a place when unauthenticated peers have taken them all."""

import contextlib
import socket
import threading
import time

import pytest

from stratagem._src.core.errors import UnavailableError
from stratagem._src.transport import Identity, Listener, connect, connecting, connection_limiter
from stratagem._src.transport.connection_limiter import ConnectionLimiter

HOST, GUEST = Identity("host"), Identity("guest", 7)


class Served:
    """Connections that wait for their peers in threads, as those of a server do."""

    def __init__(self, admission):
        self._admission = admission
        self._threads = []
        self._peers = []

    def come(self, peer):
        ours, theirs = socket.socketpair()
        self._peers.append(theirs)
        place = self._admission.acquire(ours, peer)
        if place is None:
            ours.close()
            return None

        def wait():
            with contextlib.suppress(OSError):
                ours.recv(1)
            ours.close()
            place.release()

        self._threads.append(threading.Thread(target=wait))
        self._threads[-1].start()
        return theirs

    def end(self):
        for peer in self._peers:
            peer.close()
        for thread in self._threads:
            thread.join(10)


@pytest.fixture
def clock():
    return [0.0]


@pytest.fixture
def served(clock):
    served = Served(ConnectionLimiter(3, lambda: clock[0]))
    yield served
    served.end()


def is_open(connected):
    connected.setblocking(False)
    try:
        return connected.recv(1) != b""
    except BlockingIOError:
        return True


def test_who_comes_at_the_same_moment_does_not_push_others_out(served):
    first = [served.come("a") for _ in range(3)]
    assert served.come("a") is None
    assert all(map(is_open, first))


def test_after_a_second_the_oldest_gives_way(served, clock):
    first = served.come("a")
    clock[0] = 0.5
    others = [served.come("a") for _ in range(2)]
    clock[0] = 1.0
    assert served.come("a") is not None
    assert not is_open(first)
    assert all(map(is_open, others))
    assert served.come("a") is None  # the next one has not had its second


def test_a_peer_that_holds_most_places_gives_one_to_another_peer_at_once(served):
    ours = served.come("b")
    greedy = [served.come("a") for _ in range(2)]
    assert served.come("c") is not None
    assert not is_open(greedy[0])
    assert is_open(ours)
    assert served.come("d") is None  # all hold the same now


def test_a_place_that_is_left_is_free(served, clock):
    places = [served.come("a") for _ in range(3)]
    places[0].close()
    deadline = time.monotonic() + 10
    while served.come("a") is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_listener_full_of_slow_peers_lets_a_task_in(credentials, monkeypatch):
    monkeypatch.setattr(
        connecting, "_OVERLOAD_TIMEOUT", 8.0
    )  # before the slow ones have taken too long
    served = threading.Event()
    listener = Listener("127.0.0.1:0", credentials, HOST, lambda connection: served.set())
    listener.start()
    host, port = listener.address.rsplit(":", 1)
    slow = [socket.create_connection((host, int(port)), timeout=10) for _ in range(64)]
    try:
        # One call, which waits for a place: whoever fails at once takes the task for lost.
        deadline = time.monotonic() + 10
        connect(listener.address, credentials, own=GUEST, wanted=HOST, deadline=deadline).close()
        assert served.wait(10)
    finally:
        for peer in slow:
            peer.close()
        listener.shutdown()


def test_a_place_that_was_lost_is_told_when_it_is_left(clock):
    places = ConnectionLimiter(1, lambda: clock[0])
    pairs = [socket.socketpair() for _ in range(2)]
    slow = places.acquire(pairs[0][0], "a")
    clock[0] = 2.0
    left = []

    def leave_when_woken():
        pairs[0][0].recv(1)
        left.append(slow.release())

    thread = threading.Thread(target=leave_when_woken)
    thread.start()
    kept = places.acquire(pairs[1][0], "a")
    thread.join(10)
    assert left == [False]
    assert kept.release()
    for ours, theirs in pairs:
        ours.close()
        theirs.close()


def test_a_peer_that_lost_its_place_is_not_let_in_half(credentials, monkeypatch):
    """Its request would be carried out on a connection that has no way back for the answer."""
    served = threading.Event()
    listener = Listener("127.0.0.1:0", credentials, HOST, lambda connection: served.set())
    monkeypatch.setattr(connection_limiter.ConnectionSlot, "release", lambda place: False)
    listener.start()
    with pytest.raises(UnavailableError):
        connect(
            listener.address, credentials, own=GUEST, wanted=HOST, deadline=time.monotonic() + 10
        )
    listener.shutdown()
    assert not served.is_set()
