"""What is sent cannot be read, changed, repeated, left out, moved or cut on the way."""

import socket
import struct
import time

import numpy as np
import pytest
from man_in_the_middle import ManInTheMiddle

from stratagem._src.core.errors import DeadlineExceededError, UnavailableError
from stratagem._src.transport import Connection, Kind, Message, PeerDisconnectedError, TamperedError
from stratagem._src.transport import cipher as cipher_module
from stratagem._src.transport.byte_stream import ByteStream

SERVER, CLIENT = "to server", "to client"


@pytest.fixture
def between(listen):
    """Puts somebody in front of an endpoint that notes what it is told."""
    made = []

    def put(edit):
        heard = []

        def note(message):
            heard.append(message.body)
            return Message(b"answer to " + message.body, message.arrays)

        middle = ManInTheMiddle(listen({"note": note}), edit)
        made.append(middle)
        return middle.address, heard

    yield put
    for middle in made:
        middle.close()


def flip(record, position):
    return record[:position] + bytes([record[position] ^ 1]) + record[position + 1 :]


def call(caller, body, timeout=5, arrays=()):
    return caller.call("note", Message(body, arrays), timeout=timeout)


def test_who_only_listens_changes_nothing_and_learns_nothing(between, connect):
    seen = []

    def listen_in(direction, number, record):
        seen.append(record)
        return [(direction, record)]

    address, _ = between(listen_in)
    array = np.frombuffer(b"plain text " * 100_000, np.uint8)
    answer = call(connect(address), b"plain text", arrays=(array,))
    assert answer.body == b"answer to plain text"
    assert np.array_equal(answer.arrays[0], array)
    assert len(seen) >= 4
    assert not any(b"plain text" in record or b"note" in record for record in seen)


@pytest.mark.parametrize("at", [SERVER, CLIENT])
@pytest.mark.parametrize("position", [4, 20, -1], ids=["first", "middle", "tag"])
def test_a_changed_bit_is_noticed(between, connect, at, position):
    def change(direction, number, record):
        position_here = position % len(record)
        return [(direction, flip(record, position_here) if direction == at else record)]

    address, heard = between(change)
    with pytest.raises(UnavailableError, match="cannot be reached"):
        call(connect(address), b"one")
    assert heard == ([] if at == SERVER else [b"one"])


@pytest.mark.parametrize("at", [SERVER, CLIENT])
@pytest.mark.parametrize("change", [1, -1, 1 << 24], ids=["longer", "shorter", "huge"])
def test_a_changed_length_is_noticed(between, connect, at, change):
    def lie(direction, number, record):
        (size,) = struct.unpack("<I", record[:4])
        lied = struct.pack("<I", size + change) + record[4:]
        return [(direction, lied if direction == at else record)]

    address, heard = between(lie)
    seconds = 0.5 if at == SERVER else 2.0  # enough for the server to hear it
    with pytest.raises((UnavailableError, DeadlineExceededError, ValueError)):
        call(connect(address), b"one", timeout=seconds)
    assert heard == ([] if at == SERVER else [b"one"])


def test_a_repeated_request_is_not_answered_twice(between, connect):
    address, heard = between(
        lambda direction, number, record: [(direction, record)] * (1 + (direction == SERVER))
    )
    caller = connect(address)
    assert call(caller, b"one").body == b"answer to one"
    with pytest.raises(UnavailableError):
        call(caller, b"two")
    assert heard == [b"one"]


def test_a_repeated_answer_is_not_taken_for_the_next(between, connect):
    first = []

    def repeat(direction, number, record):
        if direction == CLIENT:
            first.append(record)
            return [(CLIENT, first[0])]
        return [(SERVER, record)]

    address, _ = between(repeat)
    caller = connect(address)
    assert call(caller, b"one").body == b"answer to one"
    with pytest.raises(UnavailableError, match="modified in transit"):
        call(caller, b"two")


def test_a_request_that_is_left_out_ends_the_connection_at_the_next(between, connect):
    address, heard = between(
        lambda direction, number, record: (
            [] if (direction, number) == (SERVER, 1) else [(direction, record)]
        )
    )
    array = np.zeros(300_000, np.uint8)
    with pytest.raises(UnavailableError):
        call(connect(address), b"one", arrays=(array, array, array))
    assert heard == []


def test_records_in_another_order_are_noticed(between, connect):
    held = []

    def swap(direction, number, record):
        if direction == SERVER and number < 2:
            held.insert(0, (direction, record))
            return held if number == 1 else []
        return [(direction, record)]

    address, heard = between(swap)
    with pytest.raises(UnavailableError):
        call(connect(address), b"one", arrays=(np.zeros(3_000_000, np.uint8),))
    assert heard == []


def test_what_one_sent_is_not_taken_for_an_answer(between, connect):
    address, heard = between(
        lambda direction, number, record: (
            [(CLIENT, record)] if direction == SERVER else [(direction, record)]
        )
    )
    with pytest.raises(UnavailableError, match="modified in transit"):
        call(connect(address), b"one")
    assert heard == []


@pytest.mark.parametrize("num_bytes", [3, 10, 1000])
def test_a_cut_is_noticed(between, connect, num_bytes):
    sent = []

    def cut(direction, number, record):
        if direction == CLIENT:
            if sent:
                return None
            sent.append(record)
            return [(CLIENT, record[:num_bytes])]
        return [(SERVER, record)]

    address, _ = between(cut)
    with pytest.raises((UnavailableError, DeadlineExceededError)):
        call(connect(address), b"one", timeout=0.5, arrays=(np.zeros(1_000_000, np.uint8),))


def test_what_is_injected_ends_a_connection_that_waits(between, connect):
    injected = struct.pack("<I", 20) + bytes(36)
    address, _ = between(
        lambda direction, number, record: (
            [(SERVER, record)] if direction == SERVER else [(CLIENT, injected), (CLIENT, record)]
        )
    )
    with pytest.raises(UnavailableError, match="modified in transit"):
        call(connect(address), b"one")


@pytest.fixture
def pair():
    """Both ends of a connection, protected."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        first = Connection(ByteStream(socket.create_connection(listening.getsockname())))
        second = Connection(ByteStream(listening.accept()[0]))
    keys = bytes(32), bytes([1]) * 32
    first.protect(*keys)
    second.protect(*reversed(keys))
    yield first, second
    first.close()
    second.close()


def test_keys_change_in_step(pair, monkeypatch):
    monkeypatch.setattr(cipher_module, "_RECORDS_PER_KEY", 3)
    first, second = pair
    keys = set()
    for number in range(10):
        for one, other in ((first, second), (second, first)):
            one.send(Kind.EVENT, "", Message(b"%d" % number), None)
            assert other.receive(time.monotonic() + 10)[2].body == b"%d" % number
            keys.add(one._writer.cipher._key)
    assert len(keys) == 8


def test_a_record_under_a_former_key_is_refused(pair, monkeypatch):
    monkeypatch.setattr(cipher_module, "_RECORDS_PER_KEY", 1)
    first, second = pair
    stale = first._writer._small(b"x" * 40)
    first._writer._small(b"never sent")
    first._stream.send([stale], None)
    assert second._reader.read(None) == b"x" * 40
    first._stream.send([stale], None)
    with pytest.raises(TamperedError):
        second.receive(time.monotonic() + 10)


def test_an_error_in_the_middle_ends_the_connection_for_both_directions(pair):
    first, second = pair
    first._stream.send([struct.pack("<I", 20) + bytes(36)], None)
    with pytest.raises(TamperedError):
        second.receive(time.monotonic() + 10)
    with pytest.raises(PeerDisconnectedError):
        first.receive(time.monotonic() + 10)
    with pytest.raises(OSError):
        second.send(Kind.EVENT, "", Message(b"more"), None)
