"""Threads that stand in for processes of several hosts: memory of their own, real connections."""

import threading

import numpy as np

from stratagem._src.collective_backends.backend_selection import open_backend
from stratagem._src.collective_backends.shared_memory.slots import DeviceBuffers
from stratagem._src.transport import Credentials

SECONDS = 60.0
CREDENTIALS = Credentials(secret="a secret of the test's own")


def in_threads(count, work):
    """Returns what ``work(rank)`` returns for each of some ranks, called at the same time."""
    results, errors = [None] * count, []

    def run(rank):
        try:
            results[rank] = work(rank)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
        assert not thread.is_alive()
    if errors:
        raise errors[0]
    return results


def open_on(
    hosts,
    change=lambda rank, number, said: said,
    credentials=None,
    listen_hosts=None,
    **options,
):
    """Returns what the processes open.

    Args:
        hosts: The name of the host of each process.
        change: What becomes of what a process tells, by its rank and the number of the telling.
        credentials: Of each process; default the same for all.
        listen_hosts: Where each process listens; default loopback.
        **options: For ``open_backend``.
    """
    count = len(hosts)
    barrier = threading.Barrier(count, timeout=SECONDS)
    said = {}

    def open_one(rank):
        number = -1

        def tell(value):
            nonlocal number
            number += 1
            if number == 0 and isinstance(value, list):
                value = [hosts[rank], "pid", value[2]]
            said[number, rank] = change(rank, number, value)
            barrier.wait()
            return [said[number, i] for i in range(count)]

        names = [f"worker {i}" for i in range(count)]
        own = CREDENTIALS if credentials is None else credentials[rank]
        where = "127.0.0.1" if listen_hosts is None else listen_hosts[rank]
        return open_backend(rank, names, where, own, tell, **options)

    return in_threads(count, open_one)


def share_of(combination, arrays, num_devices):
    """Returns what a device brings, with room for what it gets from so many."""
    sizes = [combination.size(array.size, num_devices) for array in arrays]
    results = [np.empty(size, array.dtype) for size, array in zip(sizes, arrays, strict=True)]
    return DeviceBuffers(arrays, results)
