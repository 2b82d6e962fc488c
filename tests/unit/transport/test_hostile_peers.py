"""Nobody, known or unknown, can end a listener by what it sends, while others call it."""

import contextlib
import json
import random
import resource
import socket
import struct
import threading
import time

import numpy as np
import psutil
import pytest

from stratagem._src.transport import Identity, Message, connect
from stratagem._src.transport.wire_format import _HEAD, Kind

SERVER, CLIENT = Identity.of_task("ps", 0), Identity("hostile")
HELLO = b"stratagem-task-2\1" + bytes(range(64)) + SERVER.to_bytes() + CLIENT.to_bytes()


def open_socket(address):
    host, port = address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=10)


def drain(connected):
    """Waits until the other end closes."""
    with contextlib.suppress(OSError):
        while connected.recv(4096):
            pass


def says_nothing_and_closes(address, rng):
    open_socket(address).close()


def resets(address, rng):
    with open_socket(address) as connected:
        connected.sendall(HELLO[: rng.randrange(len(HELLO))])
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def closes_one_direction(address, rng):
    with open_socket(address) as connected:
        connected.shutdown(socket.SHUT_WR)
        drain(connected)


def sends_half_a_greeting(address, rng):
    with open_socket(address) as connected:
        connected.sendall(HELLO[: rng.randrange(1, len(HELLO))])


def sends_garbage(address, rng):
    with open_socket(address) as connected, contextlib.suppress(OSError):
        connected.sendall(rng.randbytes(rng.randrange(1, 2000)))
        connected.shutdown(socket.SHUT_WR)
        drain(connected)


def greets_with_garbage(address, rng):
    with open_socket(address) as connected, contextlib.suppress(OSError):
        connected.sendall(b"stratagem-task-2" + rng.randbytes(600))
        connected.shutdown(socket.SHUT_WR)
        drain(connected)


def greets_slowly(address, rng):
    with open_socket(address) as connected, contextlib.suppress(OSError):
        for byte in HELLO[:50]:
            connected.sendall(bytes([byte]))


def proves_nothing(address, rng):
    with open_socket(address) as connected, contextlib.suppress(OSError):
        connected.sendall(HELLO)
        connected.recv(81)
        connected.sendall(rng.randbytes(32) + rng.randbytes(500))
        drain(connected)


STRANGERS = [
    says_nothing_and_closes,
    resets,
    closes_one_direction,
    sends_half_a_greeting,
    sends_garbage,
    greets_with_garbage,
    greets_slowly,
    proves_nothing,
]


def head(kind=Kind.REQUEST, method=0, layout=0, body=0):
    return _HEAD.pack(kind, method, layout, body)


def arrays(description):
    text = json.dumps(description).encode()
    return head(layout=len(text)) + text


# What somebody who knows the secret writes into records.
MALFORMED = {
    "too short": b"x",
    "a method that is no text": head(method=2) + b"\xff\xfe",
    "an unknown kind": head(kind=77, method=4) + b"nope",
    "layout that is no JSON": head(layout=4) + b"{[[[",
    "layout of unpaired surrogates": head(layout=14) + b'[["\\ud800",1]]',
    "layout of numbers": arrays([1, 2]),
    "an unknown dtype": arrays([["nonsense", [1]]]),
    "objects": arrays([["|O", [1]]]) + bytes(8),
    "a negative size": arrays([["<f4", [-5]]]),
    "a size that is no number": arrays([["<f4", ["x"]]]),
    "fractions": arrays([["<f4", [1.5]]]),
    "nested too deeply": head(layout=100_000) + b"[" * 40_000,
    "more arrays than were announced": arrays([["<f4", [1]]]) + bytes(400),
    "more memory than there is": arrays([["<f4", [1 << 55]]]),
    "a longer body than there is memory": head(body=(1 << 62)),
}


def sends_record(address, credentials, text):
    connection = connect(
        address, credentials, own=CLIENT, wanted=SERVER, deadline=time.monotonic() + 20
    )
    with contextlib.closing(connection), contextlib.suppress(OSError):
        connection._writer.write([text], time.monotonic() + 10)
        connection._stream._socket.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ValueError):
            while True:
                connection.receive(time.monotonic() + 10)


def sends_raw(address, credentials, rng):
    """Greets as it should, then sends what was never encrypted."""
    connection = connect(
        address, credentials, own=CLIENT, wanted=SERVER, deadline=time.monotonic() + 20
    )
    size = rng.choice([0, 1, 20, 1 << 20, (1 << 20) + 1, 2**32 - 1])
    with contextlib.closing(connection), contextlib.suppress(OSError):
        connection.send_bytes(struct.pack("<I", size) + rng.randbytes(300), time.monotonic() + 10)


class Callers:
    """Threads that call an endpoint and compare its answers."""

    def __init__(self, make_caller, num_threads=3):
        self.num_calls = 0
        self.errors = []
        self._end = threading.Event()
        self._threads = [
            threading.Thread(target=self._call, args=(make_caller(), index))
            for index in range(num_threads)
        ]
        for thread in self._threads:
            thread.start()

    def _call(self, caller, index):
        number = 0
        while not self._end.is_set():
            number += 1
            body, array = f"{index} {number}".encode(), np.full(30_000, number)
            try:
                answer = caller.call("echo", Message(body, (array,)), timeout=30)
                assert answer.body == body
                assert np.array_equal(answer.arrays[0], array)
            except BaseException as error:
                self.errors.append(error)
                return
            self.num_calls += 1

    def go_on(self, num_calls=20, seconds=20.0):
        """Returns whether so many more calls are answered in time."""
        enough, deadline = self.num_calls + num_calls, time.monotonic() + seconds
        while self.num_calls < enough and time.monotonic() < deadline:
            time.sleep(0.01)
        return self.num_calls >= enough

    def stop(self):
        self._end.set()
        for thread in self._threads:
            thread.join()


@pytest.fixture
def callers(listen, connect):
    heard = []

    def echo(message):
        heard.append(message.body)
        return message

    endpoint = listen({"echo": echo})
    callers = Callers(lambda: connect(endpoint))
    yield endpoint, callers
    callers.stop()
    assert not callers.errors
    assert callers.num_calls > 0
    assert len(heard) == callers.num_calls
    assert not endpoint.wait(0)


def test_strangers_disturb_nobody(callers):
    endpoint, running = callers
    rng = random.Random(7)
    for _ in range(12):
        rng.shuffle(STRANGERS)
        for behave in STRANGERS:
            behave(endpoint.address, rng)
    assert running.go_on()


def test_half_open_strangers_disturb_nobody(callers):
    endpoint, running = callers
    strangers = [open_socket(endpoint.address) for _ in range(40)]
    assert running.go_on()
    for stranger in strangers:
        stranger.close()


@pytest.mark.parametrize("text", MALFORMED.values(), ids=MALFORMED)
def test_a_member_that_sends_nonsense_loses_its_connection_only(callers, credentials, text):
    endpoint, running = callers
    sends_record(endpoint.address, credentials, text)
    assert running.go_on()


def test_a_member_that_breaks_the_rules_of_records_loses_its_connection_only(callers, credentials):
    endpoint, running = callers
    rng = random.Random(11)
    for _ in range(20):
        sends_raw(endpoint.address, credentials, rng)
    assert running.go_on()


@pytest.mark.parametrize(
    "text", [head(body=8 << 30), arrays([["<f4", [2 << 30]]])], ids=["body", "array"]
)
def test_what_is_announced_takes_no_memory_before_it_comes(listen, credentials, text):
    endpoint = listen()
    connection = connect(
        endpoint.address, credentials, own=CLIENT, wanted=SERVER, deadline=time.monotonic() + 20
    )
    process = psutil.Process()
    before, announced = process.memory_info(), time.monotonic()
    connection._writer.write([text], time.monotonic() + 10)
    while process.memory_info().vms < before.vms + (6 << 30):
        assert time.monotonic() < announced + 20
        time.sleep(0.01)
    assert process.memory_info().rss < before.rss + (64 << 20)
    connection.close()
    while process.memory_info().vms > before.vms + (6 << 30):
        assert time.monotonic() < announced + 40
        time.sleep(0.01)


def test_too_many_open_files_are_got_over(listen, connect, echo):
    endpoint = listen()
    caller = connect(endpoint)
    assert echo(caller) == b"hello"
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    host, port = endpoint.address.rsplit(":", 1)
    opened = [socket.socket() for _ in range(5)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(each.fileno() for each in opened) + 1, hard))
    try:
        for each in opened:
            each.settimeout(10)
            each.connect((host, int(port)))
        assert echo(caller) == b"hello"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for each in opened:
            each.close()
    assert echo(connect(endpoint)) == b"hello"
