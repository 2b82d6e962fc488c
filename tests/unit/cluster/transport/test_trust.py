"""Who is let in, and what strangers can do."""

import contextlib
import logging
import os
import pickle
import socket
import subprocess
import sys
import threading

import pytest
from stratagem.cluster.transport.local_peer import check_same_user

from stratagem.cluster.errors import EnvironmentVariableError, MissingVariableError
from stratagem.cluster.transport import Channel, Credentials, Endpoint, Message
from stratagem.core.errors import PermissionDeniedError, UnauthenticatedError

SECRET = "correct horse battery staple"
WRONG = Credentials(secret="wrong donkey battery staple")
NONE = Credentials()
HELLO_BYTES, CODE_BYTES = 49, 32


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
            connected.sendall(hello)
            connected.recv(CODE_BYTES)
            connected.sendall(
                b"\1" + bytes(CODE_BYTES) + pickle.dumps((pickle.dumps(Bomb()), "", ""))
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
            client.sendall(server.recv(HELLO_BYTES))
            overheard.append(client.recv(CODE_BYTES))
            server.sendall(overheard[1])
            client.sendall(server.recv(1 + CODE_BYTES))

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=relay, args=(listening,))
        thread.start()
        with pytest.raises(ConnectionError):
            echo(connect(f"127.0.0.1:{listening.getsockname()[1]}"))
        thread.join()
    with knock(endpoint) as again:
        again.sendall(overheard[0])
        assert len(again.recv(HELLO_BYTES)) == HELLO_BYTES
        again.sendall(overheard[1])
        assert again.recv(1 + CODE_BYTES) == bytes(1 + CODE_BYTES)
        assert is_closed(again)


@pytest.mark.parametrize("start", [b"GET / HTTP/1.1\r\n", b"stratagem-task-1" + bytes(33)])
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
        Endpoint(address, {}, NONE)


@pytest.mark.parametrize("address", ["127.0.0.1:0", "localhost:0", "127.8.9.10:0"])
def test_without_a_secret_the_same_user_may_connect(listen, connect, echo, address):
    assert echo(connect(listen(credentials=NONE, address=address), NONE)) == b"hello"


@pytest.mark.skipif(
    not sys.platform.startswith("linux") or os.getuid() != 0, reason="needs two users"
)
def test_without_a_secret_another_user_may_not_connect(listen):
    host, port = host_and_port(listen(credentials=NONE))
    program = (
        "import encodings.idna, os, socket\n"
        "os.setuid(65534)\n"
        f"connected = socket.create_connection(({host!r}, {port}), timeout=10)\n"
        "try:\n"
        "    print(connected.recv(1))\n"
        "except ConnectionError:\n"
        "    print(b'')\n"
    )
    command = [sys.executable, "-I", "-S", "-c", program]
    stranger = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    assert stranger.stdout == "b''\n"


@pytest.mark.skipif(
    not sys.platform.startswith("linux") or os.getuid() != 0, reason="needs two users"
)
def test_without_a_secret_a_server_of_another_user_is_not_trusted(connect, echo):
    program = (
        "import encodings.ascii, encodings.idna, os, sys\n"
        "from stratagem.cluster.transport import Credentials, Endpoint\n"
        "os.setuid(65534)\n"
        "endpoint = Endpoint('127.0.0.1:0', {'echo': lambda message: message}, Credentials())\n"
        "endpoint.start()\n"
        "print(endpoint.address, flush=True)\n"
        "sys.stdin.read()\n"
    )
    server = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        with pytest.raises(UnauthenticatedError, match="the same user"):
            echo(connect(server.stdout.readline().strip(), NONE))
    finally:
        server.kill()
        server.communicate()


def test_without_a_secret_another_machine_is_not_trusted():
    class FromElsewhere(socket.socket):
        def getpeername(self):
            return "192.0.2.1", 2222

    with FromElsewhere() as connected, pytest.raises(UnauthenticatedError, match="this machine"):
        check_same_user(connected)


def test_a_host_that_is_not_loopback_means_all_interfaces(listen, connect, echo):
    endpoint = listen(address="worker0.example.com:0")
    _, port = endpoint.address.rsplit(":", 1)
    assert endpoint.address == f"worker0.example.com:{port}"
    assert echo(connect(f"127.0.0.1:{port}")) == b"hello"


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


def test_a_message_to_a_closed_channel_is_not_sent(listen, credentials, echo):
    channel = Channel(listen().address, credentials)
    assert channel.call("echo", Message(b"x"), timeout=10).body == b"x"
    channel.close()
    with pytest.raises(ConnectionError, match="was closed"):
        echo(channel)
