"""At which address a worker listens for arrays."""

import socket

import pytest

from stratagem._src.cluster.interfaces import is_outer_address
from stratagem._src.control_plane.array_hosts import HostOffer, choose_host, offer_of

SERVER = "10.0.0.1"


def offer(machine, *addresses, server=SERVER):
    return HostOffer(machine, addresses, server)


@pytest.mark.parametrize(
    ("offers", "chosen"),
    [
        ([offer("a", "10.0.0.1"), offer("a", "10.0.0.1")], ["127.0.0.1", "127.0.0.1"]),
        ([offer("a", "10.0.0.1"), offer("b", "10.0.0.2")], ["10.0.0.1", "10.0.0.2"]),
        # Of one family, which is IPv4 if that will do.
        ([offer("a", "fd00::1", "10.0.0.1"), offer("b", "10.0.0.2")], ["10.0.0.1", "10.0.0.2"]),
        ([offer("a", "fd00::1", "10.0.0.1"), offer("b", "fd00::2")], ["fd00::1", "fd00::2"]),
        # The leader's own name is loopback there: it is where the others found it.
        ([offer("a", server="127.0.1.1"), offer("b", "10.0.0.2")], ["10.0.0.1", "10.0.0.2"]),
        (
            [offer("a", server="127.0.1.1")] * 2 + [offer("b", "10.0.0.2")],
            ["10.0.0.1", "10.0.0.1", "10.0.0.2"],
        ),
        # Nobody knows how the second one is reached.
        ([offer("a", "10.0.0.1"), offer("b")], ["10.0.0.1", None]),
        # Systems that do not tell machines apart.
        ([offer("", "10.0.0.1"), offer("", "10.0.0.1")], ["10.0.0.1", "10.0.0.1"]),
    ],
)
def test_choice(offers, chosen):
    assert [choose_host(me, offers, server_rank=0) for me in range(len(offers))] == chosen


def test_offers_travel_as_lists():
    sent = offer("a", "10.0.0.1", "fd00::1")
    machine, addresses, server = sent
    assert HostOffer.from_json([machine, list(addresses), server]) == sent


def test_an_own_name_that_is_loopback_is_no_offer():
    assert offer_of("localhost", "127.0.0.1", "127.0.0.1").addresses == ()


def test_the_connection_to_the_server_tells_where_the_name_does_not():
    for named in (None, "localhost", "this-name-does-not-resolve.invalid", "192.0.2.7"):
        assert offer_of(named, "10.0.0.2", SERVER).addresses == ("10.0.0.2",)


def test_the_cluster_tells_first(monkeypatch):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            asked.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            pytest.skip("this machine has no other address than loopback")
        own = asked.getsockname()[0]
    assert offer_of(own, "10.0.0.2", SERVER).addresses == (own,)


@pytest.mark.parametrize(
    ("address", "outer"),
    [
        ("10.0.0.1", True),
        ("fd00::1", True),
        ("127.0.1.1", False),
        ("::1", False),
        ("fe80::1", False),
        ("fe80::1%eth0", False),
        ("0.0.0.0", False),
    ],
)
def test_outer(address, outer):
    assert is_outer_address(address) is outer
