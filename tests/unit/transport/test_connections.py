"""Connections on which both ends speak whenever they want."""

import contextlib
import re
import socket
import threading
import time

import numpy as np
import pytest

from stratagem._src.cluster.address import Address
from stratagem._src.cluster.listening import listen
from stratagem._src.core.errors import UnauthenticatedError, UnavailableError
from stratagem._src.transport import (
    Connection,
    Credentials,
    Identity,
    Kind,
    Listener,
    Message,
    PeerDisconnectedError,
    connect,
)
from stratagem._src.transport import listener as listener_module

HOST, GUEST = Identity("host"), Identity("guest", 7)


def soon():
    return time.monotonic() + 10


@pytest.fixture
def meet(credentials):
    """Returns both ends of a connection: `meet()`."""
    made = []

    def meet():
        served, done = [], threading.Event()
        there = threading.Event()

        def serve(connection):
            served.append(connection)
            there.set()
            done.wait(30)

        listener = Listener("127.0.0.1:0", credentials, HOST, serve)
        listener.start()
        guest = connect(listener.address, credentials, own=GUEST, wanted=HOST, deadline=soon())
        assert there.wait(10)
        made.append((listener, guest, done))
        return served[0], guest

    yield meet
    for listener, guest, done in made:
        done.set()
        guest.close()
        listener.shutdown()


def test_both_know_who_the_other_is(meet):
    host, guest = meet()
    assert (host.peer, guest.peer) == (GUEST, HOST)


def test_messages_that_come_back_to_back_are_kept_apart(meet):
    host, guest = meet()
    for number in range(100):
        guest.send(Kind.EVENT, f"m{number}", Message(b"%d" % number), soon())
    for number in range(100):
        assert host.receive(soon()) == (Kind.EVENT, f"m{number}", Message(b"%d" % number))


def test_both_ends_send_large_arrays_at_the_same_time(meet):
    ends = meet()
    array = np.random.default_rng(0).integers(0, 255, 5_000_000, np.uint8)
    received = []

    def send(end):
        for _ in range(3):
            end.send(Kind.EVENT, "", Message(b"", (array, array[:10])), soon())

    def receive(end):
        for _ in range(3):
            received.append(end.receive(soon())[2].arrays[0])

    threads = [threading.Thread(target=do, args=(end,)) for do in (send, receive) for end in ends]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(received) == 6
    assert all(np.array_equal(each, array) for each in received)


def test_many_threads_send_on_one_connection(meet):
    host, guest = meet()

    def send(index):
        for _ in range(20):
            guest.send(Kind.EVENT, "", Message(bytes([index]) * (index * 20_000 + 1)), soon())

    threads = [threading.Thread(target=send, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    counts = dict.fromkeys(range(8), 0)
    for _ in range(160):
        body = host.receive(soon())[2].body
        assert body == bytes([body[0]]) * (body[0] * 20_000 + 1)
        counts[body[0]] += 1
    assert set(counts.values()) == {20}
    for thread in threads:
        thread.join()


def test_one_may_wait_again_when_nothing_had_begun(meet):
    host, guest = meet()
    for _ in range(3):
        with pytest.raises(TimeoutError):
            host.receive(time.monotonic() + 0.02)
    guest.send(Kind.EVENT, "", Message(b"late"), soon())
    assert host.receive(soon())[2].body == b"late"


def test_waiting_with_a_deadline_does_not_limit_the_other_direction(meet):
    host, guest = meet()

    def wait():
        with pytest.raises(TimeoutError):
            guest.receive(time.monotonic() + 0.3)
        timed_out.set()

    timed_out = threading.Event()
    waiting = threading.Thread(target=wait)
    waiting.start()
    array = np.zeros(30_000_000, np.uint8)  # more than the buffers hold, so sending has to wait
    sending = threading.Thread(
        target=guest.send, args=(Kind.EVENT, "", Message(b"", (array,)), None)
    )
    sending.start()
    assert timed_out.wait(10)
    assert host.receive(soon())[2].arrays[0].nbytes == array.nbytes
    sending.join()
    waiting.join()


@pytest.mark.parametrize("how", [Connection.interrupt, Connection.close])
def test_another_thread_can_wake_who_waits(meet, how):
    host, guest = meet()
    threading.Timer(0.05, how, (host,)).start()
    with pytest.raises(OSError):
        host.receive(None)
    with pytest.raises(PeerDisconnectedError):
        guest.receive(soon())


def test_a_socket_that_listens_already(credentials):
    [listening] = listen(Address("127.0.0.1", 0))
    answered = threading.Event()
    listener = Listener(
        f"127.0.0.1:{listening.getsockname()[1]}",
        credentials,
        HOST,
        lambda connection: answered.set(),
        listening=[listening],
    )
    listener.start()
    connect(listener.address, credentials, own=GUEST, wanted=HOST, deadline=soon()).close()
    assert answered.wait(10)
    listener.shutdown()


def test_a_port_is_free_for_others_while_connections_go_on(credentials):
    served, ended = threading.Event(), threading.Event()

    def serve(connection):
        served.set()
        with contextlib.suppress(OSError):
            connection.receive(None)
        ended.set()

    listener = Listener("127.0.0.1:0", credentials, HOST, serve)
    listener.start()
    guest = connect(listener.address, credentials, own=GUEST, wanted=HOST, deadline=soon())
    assert served.wait(10)
    listener.release_port()
    address = Address.parse(listener.address)
    socket.create_server((address.host, address.port)).close()
    assert not ended.is_set()
    guest.close()
    assert ended.wait(10)
    listener.shutdown()


def test_a_wrong_secret_is_told_apart_from_nobody_there(credentials):
    listener = Listener("127.0.0.1:0", credentials, HOST, lambda connection: None)
    listener.start()
    wrong = Credentials(secret="wrong donkey battery staple")
    with pytest.raises(UnauthenticatedError, match="host:0 at 127"):
        connect(listener.address, wrong, own=GUEST, wanted=HOST, deadline=soon())
    listener.shutdown()
    with pytest.raises(UnavailableError, match="host:0 at 127"):
        connect(listener.address, wrong, own=GUEST, wanted=HOST, deadline=soon())


def test_an_error_while_serving_ends_only_that_connection(credentials, caplog):
    def serve(connection):
        connection.receive(soon())
        raise KeyError("not expected")

    listener = Listener("127.0.0.1:0", credentials, HOST, serve)
    listener.start()
    for _ in range(2):
        guest = connect(listener.address, credentials, own=GUEST, wanted=HOST, deadline=soon())
        guest.send(Kind.EVENT, "", Message(), soon())
        with pytest.raises(PeerDisconnectedError):
            guest.receive(soon())
        guest.close()
    assert caplog.text.count("with guest:7 ended with an error") == 2
    assert not listener.wait(0)
    listener.shutdown()


def test_the_refusal_of_one_that_says_nothing_has_a_reason(credentials, monkeypatch, caplog):
    monkeypatch.setattr(listener_module, "_HANDSHAKE_TIMEOUT", 0.2)
    listener = Listener("127.0.0.1:0", credentials, HOST, lambda connection: None)
    listener.start()
    address = Address.parse(listener.address)
    with socket.create_connection((address.host, address.port), timeout=10) as stranger:
        while stranger.recv(4096):
            pass
    listener.shutdown()
    assert "from 127.0.0.1: it did not complete the handshake within 0.2 s" in caplog.text


def test_many_strangers_cost_few_lines(credentials, caplog):
    listener = Listener("127.0.0.1:0", credentials, HOST, lambda connection: None)
    listener.start()
    address = Address.parse(listener.address)
    begun = time.monotonic()
    for _ in range(50):
        with socket.create_connection((address.host, address.port), timeout=10) as stranger:
            stranger.sendall(bytes(200))
            stranger.shutdown(socket.SHUT_WR)
            with contextlib.suppress(OSError):
                while stranger.recv(4096):
                    pass
    seconds = time.monotonic() - begun
    listener.shutdown()
    lines = [r.getMessage() for r in caplog.records if "refused" in r.getMessage()]
    assert len(lines) <= seconds + 2
    more = [int(found) for line in lines for found in re.findall(r"(\d+) more", line)]
    told = sum("refused a connection" in line for line in lines) + sum(more)
    assert told == 50


def test_the_end_of_an_acceptor_is_reported(credentials, monkeypatch, caplog):
    listener = Listener("127.0.0.1:0", credentials, HOST, lambda connection: None)

    def fail(*arguments, **options):
        raise LookupError("nobody expected this")

    monkeypatch.setattr(listener._handlers, "start", fail)
    listener.start()
    host, port = listener.address.rsplit(":", 1)
    socket.create_connection((host, int(port)), timeout=10).close()
    with pytest.raises(LookupError, match="nobody expected this"):
        listener.wait(10)
    with pytest.raises(LookupError):
        listener.wait(10)
    assert "the listener of host:0" in caplog.text
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), timeout=10)
    listener.shutdown()


def test_when_no_thread_is_to_be_had_the_next_is_served(credentials, monkeypatch):
    served = threading.Event()
    listener = Listener("127.0.0.1:0", credentials, HOST, lambda connection: served.set())
    start, failures = listener._handlers.start, [RuntimeError("can't start new thread")]

    def fail_once(*arguments, **options):
        if failures:
            raise failures.pop()
        return start(*arguments, **options)

    monkeypatch.setattr(listener._handlers, "start", fail_once)
    listener.start()
    connect(listener.address, credentials, own=GUEST, wanted=HOST, deadline=soon()).close()
    assert not failures  # it was turned away, and came again
    assert served.wait(10)
    assert not listener._unauthenticated._slots
    listener.shutdown()
