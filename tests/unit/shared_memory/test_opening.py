import threading

import numpy as np
import pytest

from stratagem._src.shared_memory import opening
from stratagem._src.shared_memory.combination import Combination
from stratagem._src.shared_memory.opening import open_exchange
from stratagem._src.shared_memory.shared_exchange import Share


def open_in_threads(count, change=lambda rank, said: said):
    """Returns what each of several processes opens; ``change`` is what happens to what one tells."""
    said = {}
    barrier = threading.Barrier(count, timeout=30)
    results = [None] * count

    def run(rank):
        turn = iter(range(2))

        def tell(value):
            number = next(turn)
            said[number, rank] = change(rank, value)
            barrier.wait()
            return [said[number, i] for i in range(count)]

        results[rank] = open_exchange(rank, tell)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    return results


def test_processes_of_one_machine_share_memory():
    exchanges = open_in_threads(2)
    sums = [np.empty(1, np.int32) for _ in exchanges]

    def add(rank):
        share = Share([np.array([rank + 1], np.int32)], [sums[rank]])
        exchanges[rank].exchange(Combination.SUM, [share])

    thread = threading.Thread(target=add, args=(1,), daemon=True)
    thread.start()
    add(0)
    thread.join(30)
    assert [s.tolist() for s in sums] == [[3], [3]]
    for exchange in exchanges:
        exchange.close()


def of_another_machine(rank, said):
    return [["other", "pid:[1]"], *said[1:]] if rank == 1 and isinstance(said, list) else said


def with_another_key(rank, said):
    return [*said[:2], "00" * 32] if rank == 1 and isinstance(said, list) else said


def without_memory(rank, said):
    return None if rank == 1 and isinstance(said, list) else said


def without_a_process(rank, said):
    return [said[0], [2**22 + 1, 3], said[2]] if rank == 1 and isinstance(said, list) else said


@pytest.mark.parametrize(
    "change", [of_another_machine, with_another_key, without_memory, without_a_process]
)
def test_nobody_shares_memory_unless_all_can(change):
    assert open_in_threads(3, change) == [None, None, None]


def test_systems_without_such_memory_do_without(monkeypatch):
    monkeypatch.setattr(opening, "can_share", lambda: False)
    assert open_in_threads(2) == [None, None]
