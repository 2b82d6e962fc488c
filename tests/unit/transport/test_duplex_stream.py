"""Conversations over real connections: who speaks is never held up, and who hears is told the end."""

import queue
import time

import pytest

from stratagem._src.cluster.errors import RendezvousError
from stratagem._src.process.background import Background
from stratagem._src.transport import Credentials, Identity, Kind, Listener, Message, connect
from stratagem._src.transport.duplex_stream import DuplexStream, HeartbeatTimeout

CREDENTIALS = Credentials(secret="correct horse battery staple")
HOST, GUEST = Identity("host"), Identity("guest", 3)


@pytest.fixture
def ends():
    """The connections of a host and of its guest."""
    arrived = queue.SimpleQueue()
    over = queue.SimpleQueue()

    def serve(connection):
        arrived.put(connection)
        over.get()

    listener = Listener("127.0.0.1:0", CREDENTIALS, HOST, serve)
    listener.start()
    deadline = time.monotonic() + 10
    guest = connect(listener.address, CREDENTIALS, own=GUEST, wanted=HOST, deadline=deadline)
    yield arrived.get(timeout=10), guest
    over.put(None)
    guest.close()
    listener.shutdown()


def soon():
    return time.monotonic() + 10


def test_both_ends_speak_whenever_they_want(ends):
    host, guest = map(DuplexStream, ends)
    for number in range(100):
        host.send({"host": number})
        guest.send({"guest": number, "text": "\ud800 ü"})
    assert [guest.receive(soon()) for _ in range(100)] == [{"host": n} for n in range(100)]
    assert [host.receive(soon())["guest"] for _ in range(100)] == list(range(100))


def test_heartbeats_keep_a_conversation_alive_and_are_not_heard(ends):
    host, guest = (DuplexStream(end, heartbeat_timeout=1.0) for end in ends)
    spoken = []

    def beat():
        begun = time.monotonic()
        while time.monotonic() < begun + 2.5:
            host.send_heartbeat()
            time.sleep(0.1)
        spoken.append(True)
        host.send({"last": True})

    background = Background("a test")
    thread = background.start(beat, name="beats")
    assert guest.receive() == {"last": True}
    assert spoken
    thread.join()


def test_an_end_without_heartbeats_is_lost(ends):
    _, guest = (DuplexStream(end, heartbeat_timeout=0.3) for end in ends)
    begun = time.monotonic()
    with pytest.raises(HeartbeatTimeout, match=r"host.* has sent no heartbeat for 0\.3 s"):
        guest.receive()
    assert time.monotonic() - begun < 5.0


def test_a_deadline_of_its_own_is_not_taken_for_silence(ends):
    _, guest = (DuplexStream(end, heartbeat_timeout=60.0) for end in ends)
    with pytest.raises(TimeoutError):
        guest.receive(time.monotonic() + 0.1)


def test_order_is_kept_when_messages_have_to_wait(ends):
    host, guest = map(DuplexStream, ends)
    sizes = [10, 1_000_000, 10, 3_000_000, 10, 5_000, 10] * 3
    for number, size in enumerate(sizes):
        host.send({"number": number, "text": "x" * size})
    heard = [guest.receive(soon()) for _ in sizes]
    assert [(one["number"], len(one["text"])) for one in heard] == list(enumerate(sizes))
    host.send({"number": "last"})
    assert guest.receive(soon()) == {"number": "last"}


def test_who_speaks_is_not_held_up_by_who_does_not_listen_and_takes_it_for_lost(ends):
    host = DuplexStream(ends[0])
    text = "x" * 10_000
    begun = time.monotonic()
    for _ in range(6_000):  # some megabytes fit into the buffers between them
        host.send({"text": text})
    assert time.monotonic() - begun < 10
    with pytest.raises(OSError):
        host.receive(soon())


def test_all_is_sent_before_the_end(ends):
    host, guest = map(DuplexStream, ends)
    for number in range(20):
        host.send({"number": number, "text": "x" * 500_000})
    finishing = Background("a test").start(host.finish, 20.0, name="finish")
    assert [guest.receive(soon())["number"] for _ in range(20)] == list(range(20))
    with pytest.raises(ConnectionError):
        guest.receive(soon())
    finishing.join(20)


@pytest.mark.parametrize("body", [b"", b"[]", b"null", b"\xff", b"[" * 100_000, b"1" * 10_000])
def test_anything_but_a_json_object_is_refused(ends, body):
    host = DuplexStream(ends[0])
    ends[1].send(Kind.EVENT, "", Message(body), None)
    with pytest.raises(RendezvousError, match="guest:3 sent a message that is not a JSON object"):
        host.receive(soon())


def test_speaking_after_the_end_is_silent(ends):
    host, guest = map(DuplexStream, ends)
    guest.close()
    with pytest.raises(OSError):
        host.receive(soon())
    host.close()
    for conversation in (host, guest):
        conversation.send({"anybody": "there?"})


def test_what_cannot_be_json_is_refused_where_it_is_said(ends):
    host, guest = map(DuplexStream, ends)
    with pytest.raises(TypeError):
        host.send({"value": object()})
    host.send({"value": 1})
    assert guest.receive(soon()) == {"value": 1}
