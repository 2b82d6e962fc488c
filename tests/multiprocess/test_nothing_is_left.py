"""The checks that tests leave nothing behind: inside of workers, and when a test fails."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from processes import marked, poll
from task_functions import task

from stratagem.testing import run_cluster

TESTS = Path(__file__).parent.parent

# Fixtures of other folders, for tests that are written here and are meant to fail.
CONFTEST = """
import sys
from pathlib import Path
sys.path[:0] = {folders}
here = __file__
for folder in {folders}:
    path = Path(folder, "conftest.py")
    __file__ = str(path)
    exec(compile(path.read_text(), path, "exec"))
__file__ = here
"""

LEAVES_THREE_THINGS = """
import socket, subprocess, sys, threading
left = []

def test_leaves_nothing():
    pass

def test_leaves_three_things():
    thread = threading.Thread(target=threading.Event().wait, name="left", daemon=True)
    thread.start()
    wait = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    left.extend([subprocess.Popen(wait, stdin=subprocess.PIPE), socket.create_server(("127.0.0.1", 0))])
"""

FAILS_WITH_A_JOB = """
import os, subprocess, sys
from pathlib import Path
from processes import MARK

WAIT = [sys.executable, "-c", "import signal; signal.pause()"]

def test_fails(start, script, ready):
    Path(os.environ["NOTE"]).write_text(os.environ[MARK])
    program = script(f"subprocess.Popen({WAIT}, start_new_session=True)\\nhang()")
    start("run", "--workers", 2, program)
    ready("worker-0", "worker-1")
    subprocess.Popen(WAIT, start_new_session=True)
    raise AssertionError("of the test")
"""


def write_tests(folder, source, *fixtures_of):
    """Writes a test that has the fixtures of all tests and of some folders."""
    folders = [str(TESTS), *(str(TESTS / name) for name in fixtures_of)]
    (folder / "conftest.py").write_text(CONFTEST.format(folders=folders))
    (folder / "test_written.py").write_text(source)
    return [
        *("--rootdir", str(folder), "--config-file", str(TESTS.parent / "pyproject.toml")),
        *("-p", "no:cacheprovider", "-rA", "--tb=short", str(folder)),
    ]


def run_pytest(folder, arguments):
    with open(Path(folder) / f"{task()[1]}.log", "w") as log, contextlib.redirect_stdout(log):
        return int(pytest.main(arguments))


@pytest.mark.slow
def test_the_check_sees_what_is_left_in_workers(mark, tmp_path):
    arguments = write_tests(tmp_path, LEAVES_THREE_THINGS, "contract")
    assert run_cluster(run_pytest, 2, (str(tmp_path), arguments), timeout=100) == [1, 1]
    for log in (tmp_path / "0.log", tmp_path / "1.log"):
        text = log.read_text()
        assert "2 passed, 1 error" in text, text
        assert "at teardown of test_leaves_three_things" in text
        assert "left behind: thread 'left', process " in text
        assert ", socket that listens at 127.0.0.1:" in text


def test_no_process_outlives_a_test_that_fails(mark, tmp_path):
    arguments = write_tests(tmp_path, FAILS_WITH_A_JOB, "multiprocess")
    note = tmp_path / "mark"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments],
        env={**os.environ, "NOTE": str(note)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert "AssertionError: of the test" in done.stdout
    assert "1 failed, 1 error" in done.stdout, "a process that nobody ended is an error of its own"
    poll(lambda: not marked(note.read_text()))
