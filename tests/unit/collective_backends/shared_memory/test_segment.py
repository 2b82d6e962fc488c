"""Memory that one process writes and others read."""

import errno
import mmap
import os
import subprocess
import sys

import numpy as np
import pytest

from stratagem._src.collective_backends.shared_memory import segment as segment_module
from stratagem._src.collective_backends.shared_memory.segment import OwnSegment, PeerSegment

WRITES = {
    "map": "mmap.mmap(file, 8192)[4096] = 66",
    "write": "os.pwrite(file, b'B', 4096)",
    "shrink": "os.ftruncate(file, 0)",
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_no_other_process_writes_it(write):
    with OwnSegment() as segment:
        process, file = segment.location
        program = (
            f"import os, mmap; file = os.open('/proc/{process}/fd/{file}', os.O_RDWR)\n"
            f"try: {write}\nexcept PermissionError: print('refused')"
        )
        other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        assert other.stdout == "refused\n", other.stderr
        assert segment.view(0, 1)[0] == 0


def test_its_owner_writes_it_also_when_it_has_grown():
    with OwnSegment() as segment, PeerSegment(*segment.location) as seen:
        key = segment.key
        for num_bytes in (10, 3 * 2**20, 20 * 2**20):
            segment.reserve(num_bytes)
            segment.view(0, num_bytes)[:] = num_bytes % 251
            segment.set_progress(num_bytes)
            assert seen.progress == num_bytes
            assert np.unique(seen.view(0, num_bytes)).tolist() == [num_bytes % 251]
        assert seen.key == key


def test_readers_cannot_write():
    with OwnSegment() as segment, PeerSegment(*segment.location) as seen:
        assert not seen.view(0, 8).flags.writeable


def test_a_kernel_that_takes_no_advice(monkeypatch):
    class Map(mmap.mmap):
        def madvise(self, *_):
            raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(segment_module.mmap, "mmap", Map)
    with OwnSegment() as segment, PeerSegment(*segment.location) as seen:
        segment.reserve(3 * 2**20)
        segment.view(0, 1)[:] = 5
        assert seen.view(0, 3 * 2**20)[0] == 5


def test_a_refused_area_leaves_no_file_open(monkeypatch):
    def refuse(*_):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(segment_module.fcntl, "fcntl", refuse)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match="not permitted"):
        OwnSegment()
    assert os.listdir("/proc/self/fd") == before
