"""Who is let in, and what strangers can do."""

import contextlib
import logging
import os
import pickle
import socket
import threading
import time

import pytest

from stratagem._src.cluster.errors import EnvironmentVariableError, MissingVariableError
from stratagem._src.core.errors import (
    InvalidArgumentError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnavailableError,
)
from stratagem._src.transport import (
    Credentials,
    Identity,
    Message,
    TransportClient,
    TransportServer,
)

SECRET = "correct horse battery staple"
WRONG = Credentials(secret="wrong donkey battery staple")
NONE = Credentials()
SERVER, CLIENT = Identity.of_task("ps", 0), Identity("coordinator")
HELLO_BYTES, OFFER_BYTES, PROOF_BYTES = 329, 81, 32


def host_and_port(endpoint):
    host, port = endpoint.address.rsplit(":", 1)
    return host, int(port)


def knock(endpoint):
    return socket.create_connection(host_and_port(endpoint), timeout=10)


def is_closed(connected):
    try:
        return connected.recv(1) == b""
    except ConnectionError:
        return True


@pytest.mark.parametrize("theirs", [WRONG, NONE], ids=["wrong", "none"])
def test_a_peer_without_the_secret_is_refused_before_its_message_is_read(
    listen, connect, echo, theirs
):
    called = []
    endpoint = listen({"echo": called.append})
    with pytest.raises(UnauthenticatedError, match="secret"):
        echo(connect(endpoint, theirs))
    assert not called


@pytest.mark.parametrize("theirs", [WRONG, NONE], ids=["wrong", "none"])
def test_a_server_that_does_not_know_the_secret_is_told_nothing(listen, connect, echo, theirs):
    called = []
    endpoint = listen({"echo": called.append}, theirs)
    with pytest.raises(UnauthenticatedError, match=r"/job:ps/task:0.*secret"):
        echo(connect(endpoint))
    assert not called


def test_an_impostor_cannot_make_a_client_unpickle(connect, echo):
    class Bomb:
        def __reduce__(self):
            return os._exit, (42,)

    def pretend(listening):
        connected, _ = listening.accept()
        with connected:
            hello = connected.recv(HELLO_BYTES)
            connected.sendall(hello[:OFFER_BYTES])
            connected.recv(PROOF_BYTES)
            connected.sendall(
                b"\1" + bytes(PROOF_BYTES) + pickle.dumps((pickle.dumps(Bomb()), "", ""))
            )

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=pretend, args=(listening,))
        thread.start()
        with pytest.raises(UnauthenticatedError):
            echo(connect(f"127.0.0.1:{listening.getsockname()[1]}"))
        thread.join()


def test_an_overheard_proof_fits_no_other_connection(listen, connect, echo):
    endpoint = listen()
    overheard = []

    def relay(listening):
        client, _ = listening.accept()
        with client, knock(endpoint) as server:
            overheard.append(client.recv(HELLO_BYTES))
            server.sendall(overheard[0])
            client.sendall(server.recv(OFFER_BYTES))
            overheard.append(client.recv(PROOF_BYTES))
            server.sendall(overheard[1])
            client.sendall(server.recv(1 + PROOF_BYTES))

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=relay, args=(listening,))
        thread.start()
        with pytest.raises(ConnectionError):
            echo(connect(f"127.0.0.1:{listening.getsockname()[1]}"))
        thread.join()
    with knock(endpoint) as again:
        again.sendall(overheard[0])
        assert len(again.recv(OFFER_BYTES)) == OFFER_BYTES
        again.sendall(overheard[1])
        assert again.recv(1 + PROOF_BYTES) == bytes(1 + PROOF_BYTES)
        assert is_closed(again)


@pytest.mark.parametrize(
    "start",
    [b"GET / HTTP/1.1\r\n", b"stratagem-task-1" + bytes(33), b"stratagem-task-2" + bytes(345)],
)
def test_a_stranger_that_sends_much_is_cut_off(listen, connect, echo, start):
    endpoint = listen()
    with knock(endpoint) as stranger:
        sent = send_until_cut_off(stranger, start, most=1 << 30)
    assert sent < 64 << 20  # what fits into the kernel's buffers
    assert echo(connect(endpoint)) == b"hello"


def send_until_cut_off(stranger, start, most):
    piece, sent = bytes(1 << 20), 0
    with contextlib.suppress(ConnectionError):
        stranger.sendall(start)
        while sent < most:
            stranger.sendall(piece)
            sent += len(piece)
    return sent


def test_strangers_that_say_nothing_keep_nobody_out(listen, connect, echo):
    endpoint = listen()
    strangers = [knock(endpoint) for _ in range(40)]
    assert echo(connect(endpoint)) == b"hello"
    for stranger in strangers:
        stranger.close()


def test_more_strangers_than_are_waited_for_are_sent_away(listen):
    endpoint = listen()
    strangers = [knock(endpoint) for _ in range(65)]
    assert is_closed(strangers[-1])
    for stranger in strangers:
        stranger.close()


def test_the_secret_is_never_shown(listen, connect, echo, caplog):
    caplog.set_level(logging.DEBUG)
    endpoint = listen()
    shown = [repr(Credentials(secret=SECRET)), repr(endpoint)]
    for theirs in (WRONG, NONE):
        with pytest.raises(UnauthenticatedError) as caught:
            echo(connect(endpoint, theirs))
        shown.append(str(caught.value))
    endpoint.shutdown()
    assert "refused a connection from 127.0.0.1" in caplog.text
    for text in [caplog.text, *shown]:
        assert "staple" not in text


@pytest.mark.parametrize("address", ["0.0.0.0:0", "192.0.2.1:0", "worker0.example.com:0", "[::]:0"])
def test_without_a_secret_only_loopback_is_bound(address):
    with pytest.raises(PermissionDeniedError, match="must be loopback"):
        TransportServer(address, {}, NONE, SERVER)


@pytest.mark.parametrize("address", ["127.0.0.1:0", "localhost:0", "127.8.9.10:0"])
def test_without_a_secret_the_same_user_may_connect(listen, connect, echo, address):
    assert echo(connect(listen(credentials=NONE, address=address), NONE)) == b"hello"


def test_without_a_secret_other_machines_are_not_called(connect, echo):
    with pytest.raises(PermissionDeniedError, match=r"got the host '192\.0\.2\.1'"):
        echo(connect("192.0.2.1:2222", NONE))


@pytest.mark.parametrize(
    "wanted", [Identity.of_task("ps", 1), Identity.of_task("worker", 0), Identity("ps", 0)], ids=str
)
def test_a_task_that_is_not_the_wanted_one_is_not_called(listen, connect, echo, wanted, caplog):
    called = []
    endpoint = listen({"echo": called.append})
    with pytest.raises(UnauthenticatedError, match=f"It says that it is not {wanted}"):
        echo(connect(endpoint, wanted=wanted))
    assert not called
    deadline = time.monotonic() + 10
    while f"It expects another task than {SERVER}" not in caplog.text:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_relay_that_lies_about_who_is_wanted_is_found_out(listen, connect, echo):
    """It changes the greeting such that another task accepts it."""
    endpoint = listen()

    def relay(listening):
        client, _ = listening.accept()
        with client, knock(endpoint) as server:
            hello = client.recv(HELLO_BYTES)
            other = Identity.of_task("worker", 1).to_bytes()
            assert hello.count(other) == 1
            server.sendall(hello.replace(other, SERVER.to_bytes()))
            client.sendall(server.recv(OFFER_BYTES))
            server.sendall(client.recv(PROOF_BYTES))
            client.sendall(server.recv(1 + PROOF_BYTES))

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=relay, args=(listening,))
        thread.start()
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(UnauthenticatedError, match="/job:worker/task:1"):
            echo(connect(address, wanted=Identity.of_task("worker", 1)))
        thread.join()


def test_a_half_of_a_key_exchange_that_is_none_is_refused(listen, connect, echo):
    endpoint = listen()
    hello = b"stratagem-task-2\1" + bytes(64) + SERVER.to_bytes() + CLIENT.to_bytes()
    with knock(endpoint) as stranger:
        stranger.sendall(hello)
        assert len(stranger.recv(OFFER_BYTES)) == OFFER_BYTES
        assert is_closed(stranger)
    assert echo(connect(endpoint)) == b"hello"


@pytest.mark.parametrize(
    ("role", "index"), [("", 0), ("x" * 121, 0), ("a\0b", 0), ("\ud800", 0), ("ps", -1)]
)
def test_names_that_do_not_fit_into_a_greeting(role, index):
    with pytest.raises(InvalidArgumentError, match=r"must have 1 to|must be from 0"):
        Identity(role, index)


def test_only_the_unspecified_address_means_all_interfaces(listen, connect, echo):
    _, port = listen(address="0.0.0.0:0").address.rsplit(":", 1)
    assert echo(connect(f"127.0.0.1:{port}")) == b"hello"
    _, port = listen(address="127.0.0.2:0").address.rsplit(":", 1)
    assert echo(connect(f"127.0.0.2:{port}")) == b"hello"
    with pytest.raises(UnavailableError, match="refused"):
        echo(connect(f"127.0.0.1:{port}"))


def test_credentials_of_the_environment(monkeypatch, tmp_path):
    for variable in ("SECRET", "SECRET_FILE"):
        monkeypatch.delenv(f"STRATAGEM_CLUSTER_{variable}", raising=False)
    assert Credentials.from_environment() == NONE
    file = tmp_path / "secret"
    file.write_text(SECRET + "\n")
    monkeypatch.setenv("STRATAGEM_CLUSTER_SECRET_FILE", str(file))
    assert Credentials.from_environment() == Credentials(secret=SECRET)
    monkeypatch.setenv("STRATAGEM_CLUSTER_SECRET", "short")
    with pytest.raises(EnvironmentVariableError, match="<5 characters>"):
        Credentials.from_environment()


def test_tls_needs_all_its_files(monkeypatch):
    monkeypatch.setenv("STRATAGEM_TLS_KEY", "key.pem")
    with pytest.raises(MissingVariableError, match="STRATAGEM_TLS_AUTHORITY"):
        Credentials.from_environment()


def test_a_message_to_a_closed_caller_is_not_sent(listen, credentials, echo):
    caller = TransportClient(listen().address, credentials, wanted=SERVER, own=CLIENT)
    assert caller.call("echo", Message(b"x"), timeout=10).body == b"x"
    caller.close()
    with pytest.raises(ConnectionError, match="was closed"):
        echo(caller)
