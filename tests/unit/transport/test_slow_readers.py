"""A peer that does not read its answer, or hardly, does not hold the server's thread."""

import contextlib
import time

import numpy as np
import pytest

from stratagem._src.transport import Identity, Message, connect, records
from stratagem._src.transport.byte_stream import PeerDisconnectedError
from stratagem._src.transport.wire_format import Kind

SERVER, CLIENT = Identity.of_task("ps", 0), Identity("slow")
ANSWER_BYTES = 64 * 2**20
PIECE = 64 * 1024


def read_all(connection, deadline):
    """Returns how many bytes come until the other end closes."""
    received = 0
    with contextlib.suppress(PeerDisconnectedError, ConnectionResetError):
        while received < ANSWER_BYTES:
            received += len(connection.receive_bytes(PIECE, deadline))
    return received


@pytest.mark.parametrize("reads", [0, 20])
def test_the_server_gives_up_on_a_slow_reader(listen, credentials, monkeypatch, reads):
    monkeypatch.setattr(records, "_STALL_TIMEOUT", 1.0)
    monkeypatch.setattr(records, "_MIN_BYTES_PER_SECOND", 1e12)
    answer = Message(arrays=[np.zeros(ANSWER_BYTES, np.uint8)])
    server = listen({"large": lambda _: answer}, credentials)
    deadline = time.monotonic() + 30
    connection = connect(server.address, credentials, own=CLIENT, wanted=SERVER, deadline=deadline)
    try:
        connection.send(Kind.REQUEST, "large", Message(), deadline)
        for _ in range(reads):  # makes progress all the time, at 0.6 MB a second
            connection.receive_bytes(PIECE, deadline)
            time.sleep(0.1)
        if not reads:
            time.sleep(2.0)
        assert read_all(connection, deadline) < ANSWER_BYTES
    finally:
        connection.close()


def test_a_reader_in_time_gets_a_large_answer(listen, connect, monkeypatch):
    monkeypatch.setattr(records, "_STALL_TIMEOUT", 5.0)
    answer = Message(arrays=[np.arange(2**20)])
    client = connect(listen({"large": lambda _: answer}))
    assert client.call("large", Message(), timeout=30).arrays[0][-1] == 2**20 - 1
