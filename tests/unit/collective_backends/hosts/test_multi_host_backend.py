"""Arrays of processes on several hosts."""

import itertools
import threading
import time

import ml_dtypes
import numpy as np
import pytest
from host_threads import in_threads, open_on, share_of

from stratagem._src.collective_backends.hosts import host_peers
from stratagem._src.collective_backends.hosts.host_layout import HostLayout
from stratagem._src.collective_backends.hosts.host_link import CONNECTION_LOST
from stratagem._src.collective_backends.shared_memory.collective_op import CollectiveOp

LARGE = 700_000
LAYOUTS = ["ab", "abc", "aabb", "abab", "aaab", "abcad"]


@pytest.fixture
def processes():
    opened = []

    def open_all(hosts, **options):
        exchanges = open_on(list(hosts), **options)
        opened.extend(exchanges)
        return exchanges

    yield open_all
    for exchange in opened:
        exchange.close()


@pytest.fixture(params=[False, True], ids=["one_thread", "sending_thread"])
def with_thread(request, monkeypatch):
    """Has a second thread send arrays of any size, or of none."""
    monkeypatch.setattr(host_peers, "_MIN_BYTES_FOR_THREAD", 0 if request.param else 2**62)


def arrays_of(rank, device, sizes, dtype, seed=0):
    random = np.random.default_rng([rank, device, seed])
    return [(random.normal(size=size) * 100).astype(dtype) for size in sizes]


def exchanged(exchange, rank, combination, sizes, dtype, num_devices=1, seed=0):
    """Returns the results of each device of a process."""
    count = exchange.num_processes * num_devices
    shares = [
        share_of(combination, arrays_of(rank, device, sizes, dtype, seed), count)
        for device in range(num_devices)
    ]
    assert exchange.run(combination, shares) is None
    return [share.results for share in shares]


def expected(combination, brought):
    """Returns what becomes of arrays of all devices, as NumPy computes it."""
    reduce = {CollectiveOp.MIN: np.minimum.reduce, CollectiveOp.MAX: np.maximum.reduce}
    if combination is CollectiveOp.GATHER:
        return np.concatenate(brought)
    return reduce.get(combination, lambda arrays: sum(arrays[1:], arrays[0]))(brought)


@pytest.mark.parametrize(
    ("hosts", "num_devices"),
    [
        ("ab", 1),
        ("aabb", 2),
        *(
            pytest.param(hosts, num_devices, marks=pytest.mark.slow)
            for hosts in LAYOUTS
            for num_devices in (1, 2)
            if (hosts, num_devices) not in {("ab", 1), ("aabb", 2)}
        ),
    ],
)
def test_every_combination_of_small_and_large_arrays(processes, hosts, num_devices):
    exchanges = processes(hosts)
    count = len(hosts) * num_devices
    for combination, sizes in itertools.product(
        CollectiveOp, [[count], [0, 2 * count, 5 * count], [count * (LARGE // count), 3 * count]]
    ):

        def work(rank, combination=combination, sizes=sizes):
            return exchanged(exchanges[rank], rank, combination, sizes, np.int32, num_devices)

        results = in_threads(len(hosts), work)
        for position in range(len(sizes)):
            brought = [
                arrays_of(rank, device, sizes, np.int32)[position]
                for rank in range(len(hosts))
                for device in range(num_devices)
            ]
            wanted = [expected(combination, brought)] * count
            if combination is CollectiveOp.SCATTER:
                wanted = np.split(wanted[0], count)
            got = [device[position] for process in results for device in process]
            for mine, theirs in zip(got, wanted, strict=True):
                np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
@pytest.mark.parametrize("size", [100, LARGE])
def test_all_workers_have_the_same_bits(processes, dtype, size):
    exchanges = processes("aabbc")

    def work(rank):
        [[result]] = exchanged(exchanges[rank], rank, CollectiveOp.SUM, [size], dtype)
        return result

    first, *others = in_threads(5, work)
    total = sum(arrays_of(rank, 0, [size], np.float64)[0] for rank in range(5))
    np.testing.assert_allclose(
        first.astype(np.float64), total, atol=2000 * ml_dtypes.finfo(dtype).eps
    )
    for other in others:
        assert other.tobytes() == first.tobytes()


def test_nan_is_not_lost(processes):
    exchanges = processes("abb")

    def work(rank):
        array = np.array([1.0, np.nan if rank == 1 else 2.0], np.float32)
        shares = [share_of(c, [array], 1) for c in (CollectiveOp.MIN, CollectiveOp.MAX)]
        for combination, share in zip((CollectiveOp.MIN, CollectiveOp.MAX), shares, strict=True):
            assert exchanges[rank].run(combination, [share]) is None
        return [share.results[0] for share in shares]

    for results in in_threads(3, work):
        assert all(np.isnan(result[1]) for result in results)


@pytest.mark.usefixtures("with_thread")
@pytest.mark.parametrize("is_encrypted", [False, True])
def test_many_turns_beside_a_slow_process(processes, is_encrypted):
    exchanges = processes("aabb", is_encrypted=is_encrypted)
    random = np.random.default_rng(0)
    turns = [
        (CollectiveOp(int(random.integers(5))), 4 * int(10 ** random.uniform(0, 5)))
        for _ in range(40)
    ]

    def work(rank):
        results = []
        for turn, (combination, size) in enumerate(turns):
            if rank == turn % 4:
                time.sleep(0.002)
            [[result]] = exchanged(exchanges[rank], rank, combination, [size], np.int64, seed=turn)
            results.append(result)
        return results

    by_rank = in_threads(4, work)
    for turn, (combination, size) in enumerate(turns):
        brought = [arrays_of(rank, 0, [size], np.int64, turn)[0] for rank in range(4)]
        wanted = [expected(combination, brought)] * 4
        if combination is CollectiveOp.SCATTER:
            wanted = np.split(wanted[0], 4)
        for rank in range(4):
            np.testing.assert_array_equal(by_rank[rank][turn], wanted[rank])


@pytest.mark.usefixtures("with_thread")
@pytest.mark.parametrize("size", [3, LARGE])
def test_different_arrays_are_refused(processes, size):
    exchanges = processes("ab")

    def work(rank):
        share = share_of(CollectiveOp.SUM, [np.zeros(size + rank, np.float32)], 2)
        return exchanges[rank].run(CollectiveOp.SUM, [share])

    problems = in_threads(2, work)
    assert any("different arrays" in problem for problem in problems)
    assert all(problems)


@pytest.mark.usefixtures("with_thread")
@pytest.mark.parametrize("hosts", ["ab", "aab"])
@pytest.mark.parametrize("size", [3, LARGE])
def test_who_waits_is_let_go(processes, hosts, size):
    exchanges = processes(hosts)
    last = len(hosts) - 1

    def work(rank):
        if rank == last:
            time.sleep(0.05)
            for exchange in exchanges[:last]:
                exchange.abort()
            return None
        share = share_of(CollectiveOp.SUM, [np.zeros(size, np.float32)], 1)
        return exchanges[rank].run(CollectiveOp.SUM, [share])

    problems = in_threads(len(hosts), work)
    assert all("aborted" in problem for problem in problems[:last])


@pytest.mark.usefixtures("with_thread")
@pytest.mark.parametrize("size", [3, LARGE])
def test_a_lost_peer_is_named(processes, size):
    exchanges = processes("abc")
    exchanges[2].close()

    def work(rank):
        share = share_of(CollectiveOp.SUM, [np.zeros(size, np.float32)], 1)
        return exchanges[rank].run(CollectiveOp.SUM, [share])

    for problem in in_threads(2, work):
        assert problem.startswith(CONNECTION_LOST)
    assert "worker 2" in work(0) or exchanges[0].is_aborted


@pytest.mark.parametrize("is_encrypted", [False, True])
@pytest.mark.usefixtures("with_thread")
def test_three_hosts_take_turns(processes, is_encrypted):
    """Arrays of many chunks, of different numbers on the hosts, beside a host that comes late."""
    exchanges = processes("abc", is_encrypted=is_encrypted)
    sizes = [1_000_001, 1, 70_000]

    def work(rank):
        found = []
        for turn in range(3):
            if rank == turn:
                time.sleep(0.02)
            [results] = exchanged(exchanges[rank], rank, CollectiveOp.SUM, sizes, np.int32, 1, turn)
            found.append(results)
        return found

    by_rank = in_threads(3, work)
    for turn in range(3):
        brought = [arrays_of(rank, 0, sizes, np.int32, turn) for rank in range(3)]
        for position in range(len(sizes)):
            total = sum(arrays[position] for arrays in brought)
            for rank in range(3):
                np.testing.assert_array_equal(by_rank[rank][turn][position], total)


@pytest.mark.parametrize("size", [1, 30])
def test_thousands_of_tiny_arrays(processes, size):
    exchanges = processes("abc")
    sizes = [size] * 3000

    def work(rank):
        [results] = exchanged(exchanges[rank], rank, CollectiveOp.SUM, sizes, np.int32)
        return np.concatenate(results)

    total = sum(np.concatenate(arrays_of(rank, 0, sizes, np.int32)) for rank in range(3))
    for result in in_threads(3, work):
        np.testing.assert_array_equal(result, total)


def test_no_thread_stays(processes):
    before = set(threading.enumerate())
    exchanges = processes("aabb")
    assert set(threading.enumerate()) > before
    for exchange in exchanges:
        exchange.close()
    deadline = time.monotonic() + 10
    while set(threading.enumerate()) - before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not set(threading.enumerate()) - before


@pytest.mark.parametrize(
    ("hosts", "num_lanes", "lanes"),
    [
        ("ab", 1, [0, 0]),
        ("aabb", 2, [0, 1, 0, 1]),
        ("aaab", 1, [0, None, None, 0]),
        ("abab", 2, [0, 0, 1, 1]),
        ("aaabb", 2, [0, 1, None, 0, 1]),
    ],
)
def test_lanes(hosts, num_lanes, lanes):
    layout = HostLayout.of(list(hosts))
    assert layout.num_lanes == num_lanes
    assert [layout.lane_of(rank) for rank in range(len(hosts))] == lanes
    for host in range(len(layout.hosts)):
        served = [layout.ranks_of_lane(host, lane) for lane in range(num_lanes)]
        assert sorted(itertools.chain(*served)) == list(layout.hosts[host])
