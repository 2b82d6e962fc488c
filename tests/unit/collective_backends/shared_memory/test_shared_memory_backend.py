"""Arrays of processes that share memory, of one device each."""

import json
import subprocess
import sys
import threading
import time
from subprocess import PIPE

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sharing_threads import Processes, random_arrays, share_of

from stratagem._src.collective_backends.shared_memory.collective_op import CollectiveOp
from stratagem._src.collective_backends.shared_memory.local_group import PEER_EXITED
from stratagem._src.collective_backends.shared_memory.segment import OwnSegment, PeerSegment
from stratagem._src.collective_backends.shared_memory.shared_memory_backend import (
    SharedMemoryBackend,
)

LARGE = 40_000
OFFERER = """
import json, time
from stratagem._src.collective_backends.shared_memory.segment import OwnSegment
own = OwnSegment()
print(json.dumps(own.location), flush=True)
time.sleep(60)
"""


@pytest.fixture
def processes():
    made = []

    def make(count):
        made.append(Processes(count))
        return made[-1]

    yield make
    for each in made:
        each.close()


def exchanged(exchange, combination, arrays):
    share = share_of(combination, arrays, exchange.num_processes)
    assert exchange.run(combination, [share]) is None
    return share.results


@pytest.mark.parametrize("count", [2, 3, 5])
@pytest.mark.parametrize("sizes", [[1], [3, 0, 5], [LARGE], [7, LARGE, LARGE + 1]])
def test_sums_have_the_same_bits_everywhere_and_are_added_in_order(processes, count, sizes):
    def work(rank, exchange):
        return exchanged(exchange, CollectiveOp.SUM, random_arrays(rank, sizes, np.float32))

    results = processes(count).each(work)
    brought = [random_arrays(rank, sizes, np.float32) for rank in range(count)]
    for position in range(len(sizes)):
        expected = brought[0][position].copy()
        for rank in range(1, count):
            expected += brought[rank][position]
        for result in results:
            assert result[position].tobytes() == expected.tobytes()


@pytest.mark.parametrize("size", [6, LARGE])
@pytest.mark.parametrize(
    "dtype", [np.float16, np.float64, np.int8, np.uint32, np.int64, ml_dtypes.bfloat16]
)
@pytest.mark.parametrize("combination", list(CollectiveOp))
def test_every_combination_of_every_type(processes, combination, dtype, size):
    def work(rank, exchange):
        return exchanged(exchange, combination, random_arrays(rank, [size], dtype))[0]

    results = processes(2).each(work)
    a, b = (random_arrays(rank, [size], dtype)[0] for rank in range(2))
    expected = {
        CollectiveOp.SUM: lambda: a + b,
        CollectiveOp.MIN: lambda: np.minimum(a, b),
        CollectiveOp.MAX: lambda: np.maximum(a, b),
        CollectiveOp.GATHER: lambda: np.concatenate([a, b]),
        CollectiveOp.SCATTER: lambda: np.split(a + b, 2),
    }[combination]()
    for rank, result in enumerate(results):
        wanted = expected[rank] if combination is CollectiveOp.SCATTER else expected
        np.testing.assert_array_equal(result, wanted)


def test_nan_is_not_lost(processes):
    def work(rank, exchange):
        array = np.array([1.0, np.nan if rank == 1 else 2.0], np.float32)
        return [exchanged(exchange, c, [array])[0] for c in (CollectiveOp.MIN, CollectiveOp.MAX)]

    for least, most in processes(3).each(work):
        assert np.isnan(least[1])
        assert np.isnan(most[1])


@settings(max_examples=10, deadline=None)
@given(
    turns=st.lists(
        st.tuples(
            st.sampled_from([CollectiveOp.SUM, CollectiveOp.MAX, CollectiveOp.GATHER]),
            st.lists(st.sampled_from([1, 100, LARGE, 8 * LARGE]), min_size=1, max_size=3),
        ),
        min_size=1,
        max_size=8,
    ),
    slow=st.integers(0, 2),
)
def test_turns_of_any_size_one_after_the_other_beside_a_slow_process(turns, slow):
    processes = Processes(3)

    def work(rank, exchange):
        results = []
        for turn, (combination, sizes) in enumerate(turns):
            if rank == slow:
                time.sleep(0.002)
            arrays = random_arrays(rank, sizes, np.int32, seed=turn)
            results += exchanged(exchange, combination, arrays)
        return results

    try:
        first, *others = processes.each(work)
    finally:
        processes.close()
    for other in others:
        for mine, theirs in zip(first, other, strict=True):
            np.testing.assert_array_equal(mine, theirs)


def test_who_waits_is_let_go(processes):
    two = processes(2)
    array = np.zeros(3, np.float32)

    def work(rank, exchange):
        if rank == 1:
            time.sleep(0.05)
            two.exchanges[0].abort()
            return None
        return exchange.run(CollectiveOp.SUM, [share_of(CollectiveOp.SUM, [array], 2)])

    problem, _ = two.each(work)
    assert "aborted" in problem
    share = share_of(CollectiveOp.SUM, [array], 2)
    assert "aborted" in two.exchanges[0].run(CollectiveOp.SUM, [share])


def test_a_process_that_has_ended_is_not_waited_for():
    with (
        OwnSegment() as own,
        subprocess.Popen([sys.executable, "-c", OFFERER], stdout=PIPE) as offerer,
    ):
        place = json.loads(offerer.stdout.readline())
        exchange = SharedMemoryBackend(0, [own, PeerSegment(*place)])
        timer = threading.Timer(0.05, offerer.kill)
        timer.start()
        share = share_of(CollectiveOp.SUM, [np.zeros(3, np.float32)], 2)
        assert exchange.run(CollectiveOp.SUM, [share]) == PEER_EXITED
        exchange.close()
        timer.join()


def test_different_arrays_are_refused(processes):
    def work(rank, exchange):
        array = np.zeros(4 + rank, np.float32)
        return exchange.run(CollectiveOp.SUM, [share_of(CollectiveOp.SUM, [array], 2)])

    assert all("different arrays" in problem for problem in processes(2).each(work))


def test_an_area_is_for_the_processes_of_one_user_and_for_its_owner_to_write():
    with OwnSegment() as own, PeerSegment(*own.location) as peer:
        own.view(0, 3)[:] = [1, 2, 3]
        assert peer.view(0, 3).tolist() == [1, 2, 3]
        assert peer.key == own.key
        with pytest.raises(ValueError, match="read-only"):
            peer.view(0, 3)[:] = 0
        own.reserve(10_000_000)
        own.view(9_999_999, 1)[:] = 7
        assert peer.view(9_999_999, 1).tolist() == [7]
        place = own.location
    with pytest.raises(OSError):
        PeerSegment(*place)
