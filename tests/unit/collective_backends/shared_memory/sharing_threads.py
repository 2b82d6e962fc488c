"""Threads that stand in for processes: each has a segment of its own and opens those of the others."""

import threading

import numpy as np

from stratagem._src.collective_backends.shared_memory.segment import OwnSegment, PeerSegment
from stratagem._src.collective_backends.shared_memory.shared_memory_backend import (
    SharedMemoryBackend,
)
from stratagem._src.collective_backends.shared_memory.slots import DeviceBuffers

SECONDS = 30.0


def at_once(works):
    """Returns what each of some functions returns, called in threads at the same time."""
    results = [None] * len(works)

    def run(number):
        results[number] = works[number]()

    threads = [
        threading.Thread(target=run, args=(number,), daemon=True) for number in range(len(works))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
        assert not thread.is_alive()
    return results


class Processes:
    """Exchanges that share memory."""

    def __init__(self, count):
        own = [OwnSegment() for _ in range(count)]
        self.exchanges = [
            SharedMemoryBackend(
                rank,
                [
                    segment if i == rank else PeerSegment(*segment.location)
                    for i, segment in enumerate(own)
                ],
            )
            for rank in range(count)
        ]

    def each(self, work):
        """Returns what ``work(rank, exchange)`` returns in every process."""
        return at_once(
            [
                lambda rank=rank, exchange=exchange: work(rank, exchange)
                for rank, exchange in enumerate(self.exchanges)
            ]
        )

    def close(self):
        for exchange in self.exchanges:
            exchange.close()


def share_of(combination, arrays, num_devices):
    """Returns what a device brings, with room for what it gets from so many."""
    sizes = [combination.size(array.size, num_devices) for array in arrays]
    results = [np.empty(size, array.dtype) for size, array in zip(sizes, arrays, strict=True)]
    return DeviceBuffers(arrays, results)


def random_arrays(rank, sizes, dtype, seed=0):
    random = np.random.default_rng([rank, seed])
    return [(random.normal(size=size) * 100).astype(dtype) for size in sizes]
