"""What listens is reached by its own address and by no other."""

import ipaddress
import socket

import pytest

from stratagem._src.cluster.address import Address
from stratagem._src.cluster.held_ports import HeldPorts
from stratagem._src.cluster.listening import interface_of, listen
from stratagem._src.transport import Credentials, Identity, Listener


def own_address():
    """Returns an address of this machine that is not loopback, if it has one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way_out:
        try:
            way_out.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            return None
        return way_out.getsockname()[0]


OWN = own_address()
needs_address = pytest.mark.skipif(OWN is None, reason="this machine has loopback only")


def interface(listening):
    return ipaddress.ip_address(listening.getsockname()[0])


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.8.9.10"])
def test_loopback_is_bound_alone(host):
    with listen(Address(host, 0)) as listening, HeldPorts(1, host) as held:
        assert interface(listening).is_loopback
        assert interface(held._sockets[0]) == interface(listening)


@pytest.mark.parametrize("host", ["worker0.example.com", "192.0.2.1", "0.0.0.0", "::"])
def test_what_this_machine_does_not_have_is_bound_everywhere(host):
    with listen(Address(host, 0)) as listening, HeldPorts(1, host) as held:
        assert interface(listening).is_unspecified
        assert interface(held._sockets[0]).is_unspecified


@needs_address
def test_an_address_of_this_machine_is_bound_alone():
    listener = Listener(f"{OWN}:0", Credentials("s" * 16), Identity("host"), lambda _: None)
    listener.start()
    port = Address.parse(listener.address).port
    try:
        socket.create_connection((OWN, port), timeout=10).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=10)
    finally:
        listener.shutdown()


@needs_address
def test_a_server_listens_on_a_port_that_is_held_for_its_address():
    with HeldPorts(1, OWN) as held:
        assert str(interface(held._sockets[0])) == interface_of(OWN) == OWN
        with listen(Address(OWN, *held)) as listening:
            assert listening.getsockname()[1] in set(held)


def test_ports_are_held_on_loopback_where_nobody_says():
    with HeldPorts(2) as held:
        assert all(interface(each).is_loopback for each in held._sockets)
