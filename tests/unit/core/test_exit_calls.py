"""Which calls of ``sys.exit``, ``exit`` and ``quit`` end the interpreter, and with which code."""

import os
import subprocess
import sys

import pytest

import stratagem

# Without the rest of the library, which takes long to import.
WATCHED = f"""
import atexit, sys, threading, types
package = sys.modules["stratagem"] = types.ModuleType("stratagem")
package.__path__ = {list(stratagem.__path__)!r}
from stratagem._src.process.exit_calls import exit_code_of_call, record_exit_calls
record_exit_calls()
record_exit_calls()
atexit.register(lambda: print(exit_code_of_call()))

def caught(*status):
    try:
        sys.exit(*status)
    except SystemExit as error:
        assert type(error) is SystemExit
        return error.code
"""

ENDINGS = {
    "sys.exit(7)": (7, 7),
    "sys.exit(-1)": (255, 255),
    "sys.exit('text')": (1, 1),
    "sys.exit()": (0, 0),
    "sys.exit((3,))": (3, 3),
    "threading.Timer(0, lambda: None).start(); (lambda: sys.exit(5))()": (5, 5),
    "assert caught(3) == 3": (None, 0),
    "assert caught('text') == 'text'": (None, 0),
    "caught(3); sys.exit(4)": (4, 4),
    "thread = threading.Thread(target=sys.exit, args=(3,)); thread.start(); thread.join()": (
        None,
        0,
    ),
    "exit(7)": (7, 7),
    "quit('text')": (1, 1),
    "exit()": (0, 0),
    "print(end=repr(exit)[:10].replace('Use exit()', ''))": (None, 0),
    """
try:
    quit(3)
except SystemExit as error:
    assert type(error) is SystemExit and error.code == 3
""": (None, 0),
    "raise KeyError": (None, 1),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_code_is_known_when_the_interpreter_ends(ending):
    noted, code = ENDINGS[ending]
    finished = subprocess.run(
        [sys.executable, "-c", WATCHED + ending],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    assert finished.returncode == code, finished.stderr
    assert finished.stdout == f"{noted}\n"
