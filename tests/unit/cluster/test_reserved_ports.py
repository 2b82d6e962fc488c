"""Held ports are nobody else's, and a server can listen on them all the same."""

import socket
import sys

import pytest

from stratagem._src.cluster.reserved_ports import ReservedPorts

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="held through only on Linux")


def test_server_listens_on_a_held_port():
    with ReservedPorts(1) as ports:
        [port] = ports
        with socket.create_server(("127.0.0.1", port)) as server:
            client = socket.create_connection(("127.0.0.1", port), timeout=5)
            accepted, address = server.accept()
            accepted.close()
            assert address == client.getsockname()
            client.close()


def test_reserved_ports_differ_and_are_free_again_afterwards():
    with ReservedPorts(20) as ports:
        numbers = set(ports)
        assert len(numbers) == 20
    for number in numbers:
        with socket.socket() as plain:
            plain.bind(("127.0.0.1", number))


def test_nobody_who_asks_for_any_port_is_given_a_held_one():
    with ReservedPorts(50) as ports:
        held = set(ports)
        others = [socket.create_server(("127.0.0.1", 0)) for _ in range(200)]
        given = {other.getsockname()[1] for other in others}
        for other in others:
            other.close()
    assert not held & given


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2"])
def test_a_port_is_reserved_at_the_address_that_it_is_for(host):
    with ReservedPorts(1, host) as ports:
        [port] = ports
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind((host, port))
        elsewhere = "127.0.0.3"
        with socket.create_server((elsewhere, port)) as server:
            assert server.getsockname() == (elsewhere, port)
