"""Processes that end with a thread that never comes back: with the code and output of any other."""

import os
import signal
import subprocess
import sys

import pytest

import stratagem

# A thread in the C library's pause() stands for one in XLA: Python cannot call it back either.
STUCK = f"""
import atexit, ctypes, os, signal, sys, threading, types
atexit.register(lambda: print("first registered"))
# Without the rest of the library, which takes long to import.
package = sys.modules["stratagem"] = types.ModuleType("stratagem")
package.__path__ = {list(stratagem.__path__)!r}
from stratagem._src.process import hard_exit as module
from stratagem._src.process.hard_exit import HardExit
stuck = threading.Thread(target=ctypes.CDLL(None).pause, daemon=True)
stuck.start()
hard_exit = HardExit(stuck.is_alive)
atexit.register(lambda: print("last registered"))

def fail(code=3):
    hard_exit.observe()
    print("written", end=" ")
    sys.exit(code)
"""

UNREAD = """
pipe, end = os.pipe()
os.set_blocking(end, False)
try:
    while True:
        os.write(end, bytes(4096))
except BlockingIOError:
    os.set_blocking(end, True)
file = os.fdopen(end, "w")
file.write("for nobody")
"""

ENDINGS = {
    "hard_exit.observe()": (0, ""),
    "fail()": (3, ""),
    "fail(None)": (0, ""),
    "fail(True)": (1, ""),
    "fail(-1)": (255, ""),
    "fail('a text')": (1, "a text"),
    "hard_exit.observe(); raise SystemExit(4)": (4, ""),
    "hard_exit.observe(); raise KeyError('mine')": (1, "KeyError: 'mine'"),
    "hard_exit.observe(); signal.raise_signal(signal.SIGINT)": (
        -signal.SIGINT,
        "KeyboardInterrupt",
    ),
    """
try:
    fail()
except SystemExit:
    pass
""": (0, ""),
    """
try:
    fail()
finally:
    try:
        raise KeyError
    except KeyError:
        pass
""": (3, ""),
    """
try:
    fail()
except SystemExit:
    raise KeyError("mine") from None
""": (1, "KeyError: 'mine'"),
    """
try:
    hard_exit.observe()
    raise KeyError
except KeyError:
    sys.exit(5)
""": (5, ""),
    """
import contextlib
with contextlib.suppress(SystemExit): fail()
""": (0, ""),
    "sys.settrace(lambda *_: None); fail(0)": (0, ""),
    # Nobody saw how it ends, but something is stuck.
    "sys.settrace(lambda *_: None); hard_exit.observe(); raise SystemExit(0)": (1, ""),
    "try:\n    fail(0)\nexcept SystemExit:\n    raise SystemExit(4)": (4, ""),
    "sys.settrace(lambda *_: None); hard_exit.observe(); raise KeyError('mine')": (
        1,
        "KeyError: 'mine'",
    ),
}


def start(source):
    return subprocess.Popen(
        [sys.executable, "-c", source],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )


def test_every_way_to_end():
    processes = {}
    try:
        for ending in ENDINGS:
            processes[ending] = start(STUCK + ending)
        for ending, (code, said) in ENDINGS.items():
            printed, errors = processes[ending].communicate(timeout=100)
            assert processes[ending].returncode == code, (ending, errors)
            assert printed.replace("written ", "").splitlines() == [
                "last registered",
                "first registered",
            ]
            assert errors.rstrip().endswith(said)
            assert said or not errors, errors
    finally:
        for process in processes.values():
            process.kill()
            process.communicate()


def test_a_process_in_which_nothing_is_stuck_is_finalized():
    source = "from stratagem._src.process.hard_exit import HardExit\n"
    source += "class Last:\n    def __del__(self): print('finalized')\n"
    source += "last, hard_exit = Last(), HardExit(lambda: False)\nhard_exit.observe()\nraise SystemExit(3)"
    process = start(source)
    printed, errors = process.communicate(timeout=60)
    assert (process.returncode, printed, errors) == (3, "finalized\n", "")


def test_open_files_are_written(tmp_path):
    source = f"""{STUCK}
import gc
frozen = open({str(tmp_path / "frozen")!r}, "w")
frozen.write("logged before")
gc.freeze()  # as programs do before they fork
file = open({str(tmp_path / "log")!r}, "w")
file.write("logged")
fail()
"""
    process = start(source)
    process.communicate(timeout=60)
    assert process.returncode == 3
    assert (tmp_path / "log").read_text() == "logged"
    assert (tmp_path / "frozen").read_text() == "logged before"


def test_a_pipe_that_nobody_reads_does_not_keep_the_process():
    process = start(f"{STUCK}\n{UNREAD}\nmodule._FLUSH_TIMEOUT = 0.5\nfail(3)")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 3, errors


@pytest.mark.parametrize(("passes", "code"), [(True, 0), (False, 1)])
def test_pytest_ends_with_its_own_code(tmp_path, passes, code):
    body = STUCK.replace("\n", "\n    ") + f"\n    hard_exit.observe()\n    assert {passes}\n"
    (tmp_path / "test_stuck.py").write_text(f"def test_stuck():{body}")
    finished = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", tmp_path],
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    assert finished.returncode == code, finished.stdout + finished.stderr
    assert f"1 {'passed' if passes else 'failed'}" in finished.stdout


def test_a_forked_child_is_none_of_our_business():
    source = STUCK + (
        "hard_exit.observe()\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    atexit._run_exitfuncs()\n"
        "    os._exit(7)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7\n"
        "sys.exit(6)"
    )
    process = start(source)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 6, errors
