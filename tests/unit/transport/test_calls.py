"""Calls: concurrency, errors of methods, peers that go away, deadlines."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from stratagem._src.core.errors import (
    DeadlineExceededError,
    InvalidArgumentError,
    RemoteError,
    UnavailableError,
)
from stratagem._src.transport import Identity, Message
from stratagem._src.transport.byte_stream import ByteStream
from stratagem._src.transport.connection import Connection
from stratagem._src.transport.handshake import server_handshake
from stratagem._src.transport.wire_format import Kind, encode

PEER = """
import sys, time
from stratagem._src.transport import Credentials, TransportServer, Identity, Message
def slow(message):
    time.sleep(600)
endpoint = TransportServer("127.0.0.1:0", {"echo": lambda message: message, "slow": slow},
                    Credentials(secret="correct horse battery staple"),
                    Identity.of_task("ps", 0))
endpoint.start()
print(endpoint.address, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def peer():
    """A process with an endpoint, and its address."""
    process = subprocess.Popen(
        [sys.executable, "-c", PEER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    yield process, process.stdout.readline().strip()
    process.kill()
    process.communicate()


def test_a_hundred_threads_share_a_caller(listen, connect, echo):
    caller = connect(listen())
    answers = {}

    def call(index):
        for _ in range(5):
            answers[index] = echo(caller, str(index).encode())

    threads = [threading.Thread(target=call, args=(index,)) for index in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {index: str(index).encode() for index in range(100)}


def test_calls_run_at_the_same_time(listen, connect):
    meet = threading.Barrier(3, timeout=10)

    def wait(message):
        meet.wait()
        return message

    caller, answers = connect(listen({"wait": wait})), []

    def call(body):
        answers.append(caller.call("wait", Message(body), timeout=10).body)

    threads = [threading.Thread(target=call, args=(body,)) for body in (b"one", b"two")]
    for thread in threads:
        thread.start()
    meet.wait()
    for thread in threads:
        thread.join()
    assert sorted(answers) == [b"one", b"two"]


def test_an_exception_arrives_as_itself_with_the_traceback_of_the_task(listen, connect):
    def fail(message):
        raise KeyError("no such row")

    caller = connect(listen({"fail": fail}))
    with pytest.raises(KeyError, match="no such row") as caught:
        caller.call("fail", Message(), timeout=10)
    [note] = caught.value.__notes__
    assert "/job:ps/task:0" in note
    assert "in fail" in note


def test_an_exception_that_cannot_be_pickled_arrives_as_text(listen, connect):
    class Unpicklable(Exception):
        def __reduce__(self):
            raise TypeError("not me")

    def fail(message):
        raise Unpicklable("its text")

    caller = connect(listen({"fail": fail}))
    with pytest.raises(RemoteError, match="Unpicklable: its text"):
        caller.call("fail", Message(), timeout=10)


def test_a_method_that_exits_ends_neither_task(listen, connect, echo):
    caller = connect(listen({"exit": lambda message: sys.exit(3), "echo": lambda message: message}))
    with pytest.raises(RemoteError, match="SystemExit: 3"):
        caller.call("exit", Message(), timeout=10)
    assert echo(caller) == b"hello"


def test_an_unknown_method_says_which_there_are(listen, connect):
    with pytest.raises(InvalidArgumentError, match=r"one of \['echo'\], got 'eco'"):
        connect(listen()).call("eco", Message(), timeout=10)


def test_nobody_listens(connect, echo):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    with pytest.raises(UnavailableError, match=rf"/job:ps/task:0 at {address} cannot be reached"):
        echo(connect(address))


def test_a_peer_that_is_killed_while_it_answers(peer, connect, echo):
    process, address = peer
    caller = connect(address)
    assert echo(caller) == b"hello"
    threading.Timer(0.2, process.kill).start()
    with pytest.raises(UnavailableError, match="/job:ps/task:0"):
        caller.call("slow", Message(), timeout=60)
    with pytest.raises(UnavailableError, match="cannot be reached"):
        echo(caller)


@pytest.mark.parametrize(
    ("then_waits", "error"), [(False, UnavailableError), (True, DeadlineExceededError)]
)
def test_a_peer_that_sends_half_of_a_large_array(connect, credentials, then_waits, error):
    waited = threading.Event()

    def answer_half(listening):
        connected, _ = listening.accept()
        with connected:
            deadline = time.monotonic() + 10
            connection = Connection(ByteStream(connected))
            server_handshake(connection, credentials, Identity.of_task("ps", 0), deadline)
            connection.receive(deadline)
            pieces = encode(Kind.RESULT, "", Message(arrays=(np.zeros(1 << 20),)))
            connection._writer.write([pieces[0], pieces[1][: 1 << 22]], deadline)
            if then_waits:
                waited.wait(10)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=answer_half, args=(listening,))
        thread.start()
        caller = connect(f"127.0.0.1:{listening.getsockname()[1]}")
        with pytest.raises(error, match="/job:ps/task:0"):
            caller.call("pull", Message(), timeout=0.5 if then_waits else 10)
        waited.set()
        thread.join()


def test_a_peer_that_is_stopped_and_goes_on(peer, connect, echo):
    process, address = peer
    caller = connect(address)
    assert echo(caller) == b"hello"
    os.kill(process.pid, signal.SIGSTOP)
    os.waitpid(process.pid, os.WUNTRACED)
    with pytest.raises(DeadlineExceededError, match=r"did not answer 'echo' within 0\.2 s"):
        caller.call("echo", Message(b"first"), timeout=0.2)
    with pytest.raises(DeadlineExceededError, match=r"within 0\.2 s"):
        connect(address).call("echo", Message(), timeout=0.2)
    os.kill(process.pid, signal.SIGCONT)
    assert echo(caller, b"second") == b"second"


def test_a_caller_finds_an_endpoint_that_started_again(listen, connect, echo):
    endpoint = listen()
    caller = connect(endpoint)
    assert echo(caller) == b"hello"
    endpoint.shutdown()
    listen(address=endpoint.address)
    assert echo(caller) == b"hello"


def test_closing_a_caller_ends_its_calls(peer, connect):
    caller = connect(peer[1])
    threading.Timer(0.2, caller.close).start()
    with pytest.raises(UnavailableError, match="was closed"):
        caller.call("slow", Message(), timeout=60)


def test_shutdown_waits_for_a_method_and_wakes_wait(listen, connect):
    begun, end = threading.Event(), threading.Event()

    def method(message):
        begun.set()
        end.wait(10)
        return message

    endpoint = listen({"method": method})
    assert not endpoint.wait(0)
    failures = []

    def call():
        with pytest.raises(UnavailableError) as caught:
            connect(endpoint).call("method", Message(), timeout=10)
        failures.append(caught.value)

    caller = threading.Thread(target=call)
    caller.start()
    begun.wait(10)
    threading.Timer(0.1, end.set).start()
    endpoint.shutdown()
    assert end.is_set()
    assert endpoint.wait(0)
    caller.join()
    assert len(failures) == 1


def test_a_port_in_use(listen):
    endpoint = listen()
    with pytest.raises(UnavailableError, match=f"{endpoint.address} must be free"):
        listen(address=endpoint.address)


def test_threads_and_sockets_of_closed_callers_are_gone(listen, connect, echo):
    endpoint = listen()
    before = threading.active_count()
    for _ in range(20):
        caller = connect(endpoint)
        echo(caller)
        caller.close()
    deadline = time.monotonic() + 10
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() == before
