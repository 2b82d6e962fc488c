"""Mutual TLS, with certificates that the openssl command makes."""

import dataclasses
import select
import shutil
import socket
import ssl
import subprocess
import threading

import numpy as np
import pytest

import stratagem as sg
from stratagem._src.cluster.errors import EnvironmentVariableError
from stratagem._src.core.errors import UnauthenticatedError, UnavailableError
from stratagem._src.transport import Credentials, Identity, Message, TLSFiles

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")

SECRET = Credentials(secret="correct horse battery staple")


def make_authority(directory, name):
    key, certificate = directory / f"{name}.key", directory / f"{name}.pem"
    run_openssl(
        f"req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 "
        f"-subj /CN={name} -keyout {key} -out {certificate}"
    )
    return key, certificate


def make_task(directory, authority, name, host="IP:127.0.0.1"):
    """Returns the files of a task whose certificate the authority signed."""
    authority_key, authority_certificate = authority
    key, request, certificate = (directory / f"{name}.{kind}" for kind in ("key", "csr", "pem"))
    extensions = directory / f"{name}.ext"
    extensions.write_text(f"subjectAltName = {host}\n")
    run_openssl(
        f"req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN={name} "
        f"-keyout {key} -out {request}"
    )
    run_openssl(
        f"x509 -req -in {request} -CA {authority_certificate} -CAkey {authority_key} -days 2 "
        f"-CAcreateserial -extfile {extensions} -out {certificate}"
    )
    return TLSFiles(str(authority_certificate), str(certificate), str(key))


def run_openssl(command):
    subprocess.run(["openssl", *command.split()], check=True, capture_output=True, timeout=30)


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tls")
    ours, theirs = make_authority(directory, "ours"), make_authority(directory, "theirs")
    return {
        "member": make_task(directory, ours, "member"),
        "between": make_task(directory, ours, "between"),
        "elsewhere": make_task(directory, ours, "elsewhere", "DNS:elsewhere.example.com"),
        "stranger": dataclasses.replace(
            make_task(directory, theirs, "stranger"), authority=str(ours[1])
        ),
    }


@pytest.fixture
def member(tasks):
    return Credentials(tls=tasks["member"])


def test_large_arrays_both_ways(listen, connect, member):
    caller = connect(listen(credentials=member), member)
    array = np.random.default_rng(0).integers(0, 255, 3_000_001, np.uint8)
    for _ in range(2):
        answer = caller.call("echo", Message(b"body", (array, array[:5])), timeout=20)
        assert answer.body == b"body"
        assert np.array_equal(answer.arrays[0], array)


def test_the_secret_is_proved_as_well_where_there_is_one(listen, connect, echo, member):
    both = dataclasses.replace(member, secret="correct horse battery staple")
    endpoint = listen(credentials=both)
    assert echo(connect(endpoint, both)) == b"hello"
    with pytest.raises(UnauthenticatedError, match="secret"):
        echo(connect(endpoint, member))


def test_another_member_of_the_authority_cannot_stand_between(listen, connect, echo, member, tasks):
    """It has a certificate, but not the secret: it ends TLS on both sides and passes greetings on."""
    both = dataclasses.replace(member, secret="correct horse battery staple")
    called = []
    host, port = listen({"echo": called.append}, both).address.rsplit(":", 1)
    between = tasks["between"]

    def pass_on(source, to):
        """Passes on what has come; returns whether there may be more."""
        try:
            received = source.recv(1 << 16)
            to.sendall(received)
            return bool(received)
        except ssl.SSLWantReadError:
            return True
        except OSError:
            return False

    def stand_between(listening):
        accepted, _ = listening.accept()
        dialled = socket.create_connection((host, int(port)), timeout=10)
        with (
            between.server_context.wrap_socket(accepted, server_side=True) as client,
            between.client_context.wrap_socket(dialled, server_hostname=host) as server,
        ):
            other = {client: server, server: client}
            client.setblocking(False)
            server.setblocking(False)
            while sides := select.select(other, [], [], 10)[0]:
                if not all(pass_on(side, other[side]) for side in sides):
                    break

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=stand_between, args=(listening,))
        thread.start()
        with pytest.raises(UnauthenticatedError, match="secret"):
            echo(connect(f"127.0.0.1:{listening.getsockname()[1]}", both))
        thread.join()
    assert not called


def test_a_task_that_is_not_the_wanted_one_is_not_called(listen, connect, echo, member):
    other = Identity.of_task("worker", 3)
    with pytest.raises(UnauthenticatedError, match=f"It says that it is not {other}"):
        echo(connect(listen(credentials=member), member, wanted=other))


def test_a_certificate_of_another_authority_is_refused(listen, connect, echo, member, tasks):
    called = []
    endpoint = listen({"echo": called.append}, member)
    with pytest.raises((UnauthenticatedError, UnavailableError)):
        echo(connect(endpoint, Credentials(tls=tasks["stranger"])))
    assert not called


def test_a_server_of_another_authority_is_refused(listen, connect, echo, member, tasks):
    endpoint = listen(credentials=Credentials(tls=tasks["stranger"]))
    with pytest.raises(UnauthenticatedError, match="CERTIFICATE_VERIFY_FAILED"):
        echo(connect(endpoint, member))


def test_the_certificate_must_name_the_host(listen, connect, echo, member, tasks):
    endpoint = listen(credentials=Credentials(tls=tasks["elsewhere"]))
    with pytest.raises(UnauthenticatedError, match="name the host"):
        echo(connect(endpoint, member))


def test_plain_to_tls(listen, connect, echo, member):
    called = []
    with pytest.raises(UnavailableError, match="does it use TLS, and this task not"):
        echo(connect(listen({"echo": called.append}, member), SECRET))
    assert not called


def test_tls_to_plain(listen, connect, echo, member):
    with pytest.raises(UnauthenticatedError, match="TLS"):
        echo(connect(listen(), member))


def test_a_client_without_a_certificate_is_refused(listen, member):
    host, port = listen(credentials=member).address.rsplit(":", 1)
    anonymous = ssl.create_default_context(cafile=member.tls.authority)
    anonymous.verify_flags &= ~ssl.VERIFY_X509_STRICT  # which Python 3.13 sets, and we do not need
    with (
        socket.create_connection((host, int(port)), timeout=10) as connected,
        anonymous.wrap_socket(connected, server_hostname=host) as wrapped,
        pytest.raises(ssl.SSLError, match="CERTIFICATE_REQUIRED"),
    ):
        wrapped.recv(1)


@pytest.mark.parametrize("protocol", [None, "grpc", "grpc+tls"])
def test_a_server_uses_tls_wherever_there_are_certificates(tasks, connect, monkeypatch, protocol):
    member = tasks["member"]
    monkeypatch.setenv("STRATAGEM_TLS_AUTHORITY", member.authority)
    monkeypatch.setenv("STRATAGEM_TLS_CERTIFICATE", member.certificate)
    monkeypatch.setenv("STRATAGEM_TLS_KEY", member.key)
    server = sg.distribute.Server({"ps": ["127.0.0.1:0"]}, protocol=protocol)
    try:
        scheme, address = server.target.split("://")
        assert scheme == "grpc+tls"
        connect(address, Credentials.from_environment()).call("ps/ping", Message(), timeout=10)
        with pytest.raises(UnavailableError, match="does it use TLS"):
            connect(address, Credentials()).call("ps/ping", Message(), timeout=10)
    finally:
        server.shutdown()


def test_files_that_cannot_be_used(listen, tasks):
    broken = dataclasses.replace(tasks["member"], key="no-such-file.pem")
    with pytest.raises(EnvironmentVariableError, match="STRATAGEM_TLS_KEY"):
        listen(credentials=Credentials(tls=broken))
