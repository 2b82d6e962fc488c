"""The check that tests leave nothing behind sees what there is to leave."""

import contextlib
import socket
import subprocess
import sys
import threading

import pytest

from belongings import Belongings, left_since


@contextlib.contextmanager
def a_thread():
    end = threading.Event()
    thread = threading.Thread(target=end.wait, name="of-a-test")
    thread.start()
    yield "thread 'of-a-test'"
    end.set()
    thread.join()


@contextlib.contextmanager
def a_process():
    command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        yield f"process {process.pid} ({sys.executable} -c "
        process.stdin.close()


@contextlib.contextmanager
def a_listening_socket():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"socket that listens at 127.0.0.1:{listening.getsockname()[1]}"


@pytest.mark.parametrize("thing", [a_thread, a_process, a_listening_socket])
def test_sees(thing):
    before = Belongings.now()
    with thing() as description:
        left = left_since(before, Belongings, seconds=0)
        assert description in str(left)
        assert not left_since(before, lambda: left, seconds=0)
    assert not left_since(before, Belongings)


def test_waits_for_what_is_about_to_end():
    before = Belongings.now()
    threading.Timer(0.1, lambda: None).start()
    assert left_since(before, Belongings, seconds=0)
    assert not left_since(before, Belongings)
