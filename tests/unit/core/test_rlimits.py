"""Processes that hold many connections ask for as many open files."""

import subprocess
import sys

import pytest

PROGRAM = """
import resource
from stratagem._src.process.rlimits import raise_open_file_limit

resource.setrlimit(resource.RLIMIT_NOFILE, (200, 2000))
raise_open_file_limit(int({num_connections}))
print(resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def run(num_connections):
    """Returns what a process with low limits prints; its limits cannot be raised again."""
    program = PROGRAM.format(num_connections=num_connections)
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )


@pytest.mark.parametrize(("num_connections", "limit"), [(10, 200), (1000, 1128)])
def test_the_limit_is_raised_where_it_is_too_low(num_connections, limit):
    found = run(num_connections)
    assert found.stdout == f"({limit}, 2000)\n"
    assert found.stderr == ""


def test_who_may_not_open_so_many_says_so():
    found = run(5000)
    assert found.stdout == "(2000, 2000)\n"
    assert "5000 connections, but may open only 2000 files" in found.stderr
