"""What the kernel knows of a host that acknowledges nothing."""

import socket
import struct
import sys

import pytest

from stratagem._src.transport.byte_stream import ByteStream

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")


@pytest.fixture
def streams():
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
    both = ByteStream(near), ByteStream(far)
    yield both
    for stream in both:
        stream.close()


def test_a_peer_that_does_not_read_still_acknowledges(streams):
    near, _ = streams
    while near.has_room:
        near.send([b"x" * 65536], deadline=None)
    assert near.unacknowledged_seconds == 0.0


@pytest.mark.parametrize(
    ("retransmits", "unacknowledged", "seconds"),
    [(6, 3, 9.5), (6, 0, 0.0), (1, 3, 0.0)],
)
def test_what_is_read_of_tcp_info(streams, retransmits, unacknowledged, seconds):
    near, _ = streams
    words = [0] * 13
    words[4], words[12] = unacknowledged, 9500
    info = struct.pack("=8B13I", 1, 0, retransmits, 0, 0, 0, 0, 0, *words)

    class Asked:
        def getsockopt(self, level, option, size):
            assert (level, option) == (socket.IPPROTO_TCP, socket.TCP_INFO)
            return info[:size]

    connected, near._socket = near._socket, Asked()
    try:
        assert near.unacknowledged_seconds == seconds
    finally:
        near._socket = connected


def test_a_closed_connection_has_nothing_to_tell(streams):
    near, _ = streams
    near.close()
    assert near.unacknowledged_seconds == 0.0
