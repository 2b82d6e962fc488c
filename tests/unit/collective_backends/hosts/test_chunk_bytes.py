"""How an array is divided so that sums of one part travel while others still arrive."""

import pytest

from stratagem._src.collective_backends.hosts.reduce_scatter_all_gather import chunk_bytes

KIB, MIB = 1024, 1024 * 1024


@pytest.mark.parametrize(
    ("part", "chunk"),
    [
        (0, 64 * KIB),
        (32 * KIB, 64 * KIB),
        (MIB // 3, 87360),
        (MIB, 256 * KIB),
        (25 * MIB, 256 * KIB),
    ],
)
def test_about_four_chunks_within_limits_and_aligned_for_every_dtype(part, chunk):
    assert chunk_bytes(part) == chunk
    assert chunk % 64 == 0
