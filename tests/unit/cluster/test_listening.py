"""What listens is reached by its own address and by no other."""

import ipaddress
import socket

import pytest

from stratagem._src.cluster.address import Address
from stratagem._src.cluster.interfaces import addresses_of, is_own_address
from stratagem._src.cluster.listening import listen
from stratagem._src.cluster.reserved_ports import ReservedPorts
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


@pytest.fixture
def names(monkeypatch):
    """Has names resolve to what a test says."""
    known = {}

    def getaddrinfo(host, port, *args, **options):
        if host not in known:
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (a, port)) for a in known[host]]

    monkeypatch.setattr("socket.getaddrinfo", getaddrinfo)
    return known


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.8.9.10"])
def test_loopback_is_bound_alone(host):
    [listening] = listen(Address(host, 0))
    with listening, ReservedPorts(1, host) as held:
        assert interface(listening).is_loopback
        [[held]] = held._sockets
        assert interface(held) == interface(listening)


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_all_interfaces_are_bound_if_they_are_asked_for(host):
    [listening] = listen(Address(host, 0))
    with listening, ReservedPorts(1, host) as held:
        assert interface(listening).is_unspecified
        [[held]] = held._sockets
        assert interface(held).is_unspecified


def test_a_name_of_loopback_is_bound_there_alone_if_all_tasks_have_it(names):
    names["myhost"] = ["127.0.1.1"]
    assert addresses_of("myhost", ["myhost", "myhost"]) == ("127.0.1.1",)


@needs_address
def test_a_name_is_bound_where_it_resolves_to(names):
    names["myhost"], names["other"] = [OWN], ["192.0.2.7"]
    assert addresses_of("myhost") == addresses_of("myhost", ["myhost", "other"]) == (OWN,)


@needs_address
@pytest.mark.parametrize("peers", [[], ["myhost", "other"], ["myhost", "unknown"]])
def test_a_name_of_loopback_is_also_bound_where_other_hosts_are_reached(names, peers):
    # As /etc/hosts of Debian and Ubuntu has it. Tasks on the same host connect to 127.0.1.1.
    names["myhost"], names["other"] = ["127.0.1.1"], ["192.0.2.7"]
    assert addresses_of("myhost", peers) == ("127.0.1.1", OWN)
    sockets = listen(Address("myhost", 0), peers)
    try:
        assert [each.getsockname()[0] for each in sockets] == ["127.0.1.1", OWN]
        assert len({each.getsockname()[1] for each in sockets}) == 1
    finally:
        for each in sockets:
            each.close()


@needs_address
@pytest.mark.parametrize("host", ["unknown", "192.0.2.1", "proxy"])
def test_what_this_machine_does_not_have_is_bound_where_others_are_reached(names, host):
    names["proxy"] = names["192.0.2.1"] = ["192.0.2.1"]
    assert addresses_of(host, [host, "192.0.2.1"]) == (OWN,)


def test_a_machine_without_other_interfaces_binds_loopback(names, monkeypatch):
    monkeypatch.setattr("stratagem._src.cluster.interfaces._source_towards", lambda _: None)
    monkeypatch.setattr("stratagem._src.cluster.interfaces._interface_addresses", lambda: iter(()))
    names["myhost"] = ["127.0.1.1"]
    assert addresses_of("myhost") == ("127.0.1.1",)
    assert addresses_of("unknown") == ("127.0.0.1",)


def test_without_a_default_route_the_first_interface_decides(names, monkeypatch):
    monkeypatch.setattr("stratagem._src.cluster.interfaces._source_towards", lambda _: None)
    names["myhost"] = ["127.0.1.1"]
    resolved, chosen = addresses_of("myhost")
    assert resolved == "127.0.1.1"
    assert is_own_address(chosen)
    assert chosen != resolved


def test_a_port_that_is_taken_at_one_of_the_addresses(names):
    names["myhost"] = ["127.0.1.1", "127.0.1.2"]
    with socket.create_server(("127.0.1.2", 0)) as other, pytest.raises(OSError):
        listen(Address("myhost", other.getsockname()[1]), ["myhost", "myhost"])


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
    with ReservedPorts(1, OWN) as held:
        [[reserved]] = held._sockets
        assert str(interface(reserved)) == OWN
        [listening] = listen(Address(OWN, *held))
        with listening:
            assert listening.getsockname()[1] in set(held)


def test_ports_are_held_on_loopback_where_nobody_says():
    with ReservedPorts(2) as held:
        assert all(interface(each).is_loopback for [each] in held._sockets)
