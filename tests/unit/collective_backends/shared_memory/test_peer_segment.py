"""The memory of another process, seen from one that has many files open."""

import os
import resource
import subprocess
import sys

import pytest

from stratagem._src.collective_backends.shared_memory.segment import OwnSegment, PeerSegment

_MOST_OF_SELECT = 1024


@pytest.fixture
def many_files():
    """More open files than ``select`` can tell apart."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_OF_SELECT + 200
    if limits[1] != resource.RLIM_INFINITY and limits[1] < wanted:
        pytest.skip(f"needs {wanted} open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], wanted), limits[1]))
    files = [os.open(os.devnull, os.O_RDONLY)]
    while files[-1] <= _MOST_OF_SELECT:
        files.append(os.open(os.devnull, os.O_RDONLY))
    yield
    for file in files:
        os.close(file)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_the_end_of_a_process_is_seen_with_many_files_open(many_files):
    program = (
        "import sys; from stratagem._src.collective_backends.shared_memory.segment import OwnSegment;"
        "segment = OwnSegment(); print(*segment.location, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        segment = PeerSegment(*map(int, process.stdout.readline().split()))
        with segment, OwnSegment():
            assert segment._process > _MOST_OF_SELECT
            assert not segment.has_ended()
            process.stdin.close()
            process.wait(30)
            assert segment.has_ended()
