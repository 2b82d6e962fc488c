"""Users of one machine are kept apart by a file that only its owner can read."""

import os
import socket
import stat
import subprocess
import sys
import threading

import pytest

from stratagem._src.core.errors import PermissionDeniedError, UnauthenticatedError
from stratagem._src.transport import Credentials, Identity
from stratagem._src.transport.local_secret import local_secret, local_secret_path

NONE = Credentials()
NOBODY = 65534
HELLO = b"stratagem-task-2\2" + os.urandom(64)
needs_users = pytest.mark.skipif(
    not sys.platform.startswith("linux") or os.getuid() != 0, reason="needs two users"
)


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path


def test_it_is_made_once_and_for_its_owner_only(home):
    secret = local_secret()
    path = local_secret_path()
    assert path.is_relative_to(home)
    assert local_secret() == secret == path.read_text()
    assert len(secret) >= 64
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert os.listdir(path.parent) == [path.name]


def test_it_is_in_the_home_by_default(tmp_path, monkeypatch):
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    local_secret()
    assert (tmp_path / ".local/state/stratagem/local-secret").exists()


def test_many_that_make_it_at_once_agree(home):
    together, said = threading.Barrier(16, timeout=10), []

    def ask():
        together.wait()
        said.append(local_secret())

    threads = [threading.Thread(target=ask) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert said == 16 * [local_secret()]
    assert os.listdir(local_secret_path().parent) == ["local-secret"]


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda path: path.chmod(0o640), "mode 640"),
        (lambda path: path.parent.chmod(0o750), "mode 750"),
        (lambda path: path.write_text("short"), "not a secret"),
        (lambda path: (path.unlink(), path.mkdir(0o700)), "directory"),
        (lambda path: (path.unlink(), os.mkfifo(path, 0o600)), "wrong file type"),
        (lambda path: (path.rename(path.with_name("o")), path.symlink_to("o")), "symbolic link"),
        pytest.param(
            lambda path: os.chown(path, NOBODY, NOBODY), f"user {NOBODY}", marks=needs_users
        ),
        pytest.param(
            lambda path: os.chown(path.parent, NOBODY, NOBODY), f"user {NOBODY}", marks=needs_users
        ),
    ],
    ids=[
        "readable",
        "open-directory",
        "short",
        "directory",
        "fifo",
        "link",
        "of-another",
        "in-that-of-another",
    ],
)
def test_one_that_others_could_have_made_or_read_is_refused(home, listen, spoil, reason):
    local_secret()
    spoil(local_secret_path())
    with pytest.raises(PermissionDeniedError, match=f"{reason}.*STRATAGEM_CLUSTER_SECRET"):
        listen(credentials=NONE)


def test_a_home_that_cannot_be_written_to(tmp_path, monkeypatch, listen):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with pytest.raises(PermissionDeniedError, match=r"cannot be used: .*XDG_STATE_HOME"):
        listen(credentials=NONE)


def test_with_a_secret_or_tls_none_is_made(home, listen, connect, echo):
    assert echo(connect(listen())) == b"hello"
    assert not list(home.iterdir())


def test_who_has_another_file_does_not_get_in(home, listen, connect, echo, monkeypatch):
    called = []
    endpoint = listen({"echo": called.append}, NONE)
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "elsewhere"))
    with pytest.raises(UnauthenticatedError, match="another user, or with another home"):
        echo(connect(endpoint, NONE))
    assert not called


def test_the_users_secret_is_not_shown(home, listen, connect, echo, monkeypatch, caplog):
    caplog.set_level("DEBUG")
    endpoint = listen(credentials=NONE)
    mine = local_secret()
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "elsewhere"))
    with pytest.raises(UnauthenticatedError) as caught:
        echo(connect(endpoint, NONE))
    for text in (caplog.text, str(caught.value), repr(Credentials.for_loopback())):
        assert mine not in text
        assert local_secret() not in text


def as_nobody(program, home):
    """Starts a program as another user, who has a home."""
    theirs = home / "nobody"
    theirs.mkdir()
    os.chown(theirs, NOBODY, NOBODY)
    for directory in (home, *home.parents):
        if stat.S_IMODE(directory.stat().st_mode) & 0o001 == 0:
            pytest.skip("the other user cannot reach its home")
    program = "import encodings.idna, os, socket, stratagem._src.transport\nos.setgroups([])\n" + (
        f"os.setgid({NOBODY})\nos.setuid({NOBODY})\n{program}"
    )
    return subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "XDG_STATE_HOME": str(theirs)},
    )


@pytest.fixture
def shared(home):
    """A directory into which other users get."""
    for directory in (home, home.parent, home.parent.parent):
        directory.chmod(0o711)
    return home


@needs_users
def test_another_user_does_not_get_in(shared, listen):
    called = []
    endpoint = listen({"echo": called.append}, NONE)
    program = (
        "from stratagem._src.transport import TransportClient, Credentials, Identity, Message\n"
        "from stratagem._src.transport.local_secret import local_secret_path\n"
        f"caller = TransportClient({endpoint.address!r}, Credentials(), own=Identity('x'),\n"
        "                  wanted=Identity.of_task('ps', 0))\n"
        "try:\n"
        "    caller.call('echo', Message(), timeout=10)\n"
        "except PermissionError as error:\n"
        "    print(type(error).__name__)\n"
        f"try:\n    open({str(local_secret_path())!r})\n"
        "except PermissionError:\n    print('cannot read')\n"
    )
    stranger = as_nobody(program, shared)
    assert stranger.communicate(timeout=60)[0] == "UnauthenticatedError\ncannot read\n"
    assert not called


@needs_users
def test_another_user_that_sends_and_closes_at_once_does_not_get_in(shared, listen, connect, echo):
    """The kernel says of a socket that was closed that it belongs to root."""
    called = []

    def note(message):
        called.append(message.body)
        return message

    endpoint = listen({"echo": note}, NONE)
    host, port = endpoint.address.rsplit(":", 1)
    program = (
        "import socket\n"
        "for _ in range(50):\n"
        f"    connected = socket.create_connection(({host!r}, {port}), timeout=10)\n"
        f"    connected.sendall({HELLO!r} + bytes(600))\n"
        "    connected.close()\n"
        "print('sent')\n"
    )
    stranger = as_nobody(program, shared)
    assert stranger.communicate(timeout=60)[0] == "sent\n"
    assert echo(connect(endpoint, NONE)) == b"hello"
    assert called == [b"hello"]


@needs_users
def test_a_server_of_another_user_is_not_trusted(shared, connect, echo):
    program = (
        "import sys\n"
        "from stratagem._src.transport import Credentials, TransportServer, Identity\n"
        "endpoint = TransportServer('127.0.0.1:0', {'echo': lambda message: message}, Credentials(),\n"
        "                    Identity.of_task('ps', 0))\n"
        "endpoint.start()\n"
        "print(endpoint.address, flush=True)\n"
        "sys.stdin.read()\n"
    )
    server = as_nobody(program, shared)
    try:
        with pytest.raises(UnauthenticatedError, match="another user"):
            echo(connect(server.stdout.readline().strip(), NONE))
    finally:
        server.kill()
        server.communicate()


def test_who_sends_and_closes_at_once_leaves_the_listener_alone(home, listen, connect, echo):
    endpoint = listen(credentials=NONE)
    host, port = endpoint.address.rsplit(":", 1)

    def knock():
        for _ in range(25):
            with socket.create_connection((host, int(port)), timeout=10) as connected:
                connected.sendall(HELLO + Identity("x").to_bytes())

    threads = [threading.Thread(target=knock) for _ in range(4)]
    for thread in threads:
        thread.start()
    caller = connect(endpoint, NONE)
    assert [echo(caller, b"%d" % k) for k in range(50)] == [b"%d" % k for k in range(50)]
    for thread in threads:
        thread.join()
    assert not endpoint.wait(0)
