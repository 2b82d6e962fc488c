"""The code with which the interpreter exits is known in its exit functions."""

import os
import signal
import subprocess
import sys

import pytest

import stratagem

# Without the rest of the library, which takes long to import.
WATCHED = f"""
import atexit, signal, sys, threading, types
package = sys.modules["stratagem"] = types.ModuleType("stratagem")
package.__path__ = {list(stratagem.__path__)!r}
from stratagem._src.process.exit_code import exit_code, record_exit_calls
record_exit_calls()
record_exit_calls()
atexit.register(lambda: print(exit_code()))

def caught(*status):
    try:
        sys.exit(*status)
    except SystemExit as error:
        assert type(error) is SystemExit
        return error.code
"""

ENDINGS = {
    "sys.exit(7)": 7,
    "sys.exit(-1)": 255,
    "sys.exit('text')": 1,
    "sys.exit()": 0,
    "sys.exit(True)": 1,
    "sys.exit((3,))": 3,
    "threading.Timer(0, lambda: None).start(); (lambda: sys.exit(5))()": 5,
    "assert caught(3) == 3": 0,
    "assert caught('text') == 'text'": 0,
    "caught(3); sys.exit(4)": 4,
    "caught(3); raise KeyError": 1,
    "thread = threading.Thread(target=sys.exit, args=(3,)); thread.start(); thread.join()": 0,
    "exit(7)": 7,
    "quit('text')": 1,
    "exit()": 0,
    "print(end=repr(exit)[:10].replace('Use exit()', ''))": 0,
    """
try:
    quit(3)
except SystemExit as error:
    assert type(error) is SystemExit and error.code == 3
""": 0,
    "raise KeyError": 1,
    "signal.raise_signal(signal.SIGINT)": -signal.SIGINT,
}


def end(ending):
    finished = subprocess.run(
        [sys.executable, "-c", WATCHED + ending],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    return finished.returncode, finished.stdout


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_code_is_known_when_the_interpreter_ends(ending):
    code = ENDINGS[ending]
    assert end(ending) == (code, f"{code}\n")


def test_the_code_of_a_bare_system_exit_is_unknown():
    assert end("raise SystemExit(4)") == (4, "None\n")
