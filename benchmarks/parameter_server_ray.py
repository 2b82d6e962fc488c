"""What ``parameter_server.py`` measures, with Ray actors; started by it, in its own interpreter."""

from __future__ import annotations

import json
import statistics
import sys
import time

import numpy as np
import ray


@ray.remote(num_cpus=0)
class Worker:
    """Runs an empty function."""

    def run(self) -> None:
        """Does nothing."""


@ray.remote(num_cpus=0)
class Store:
    """Holds a counter and an array."""

    def __init__(self, array) -> None:
        self.counter, self.array = 0, array

    def increment(self) -> None:
        """Adds one to the counter."""
        self.counter += 1

    def pull(self):
        """Returns the array."""
        return self.array

    def push(self, array) -> None:
        """Replaces the array."""
        self.array = array


@ray.remote(num_cpus=0)
class IncrementingWorker:
    """Increments the counter of a store."""

    def __init__(self, store) -> None:
        self.store = store

    def run(self) -> None:
        """Adds one."""
        ray.get(self.store.increment.remote())


def median_of(rounds, measure) -> float:
    measure()
    return statistics.median(measure() for _ in range(rounds))


def milliseconds(call, count) -> float:
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count * 1e3


def calls_per_second(workers, count) -> float:
    start = time.perf_counter()
    ray.get([workers[index % len(workers)].run.remote() for index in range(count)])
    return count / (time.perf_counter() - start)


def main() -> None:
    request = json.load(sys.stdin)
    rounds = request["rounds"]
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    array = np.arange(request["num_floats"], dtype=np.float32)
    workers, store = [Worker.remote() for _ in range(2)], Store.remote(array)
    incrementing = [IncrementingWorker.remote(store) for _ in range(2)]
    figures = {
        "empty closures/s": median_of(rounds, lambda: calls_per_second(workers, 2000)),
        "increments/s": median_of(rounds, lambda: calls_per_second(incrementing, 1000)),
        "round trip, ms": median_of(
            rounds, lambda: milliseconds(lambda: ray.get(workers[0].run.remote()), 200)
        ),
        "pull 25 MB, ms": median_of(
            rounds, lambda: milliseconds(lambda: ray.get(store.pull.remote()), 5)
        ),
        "push 25 MB, ms": median_of(
            rounds, lambda: milliseconds(lambda: ray.get(store.push.remote(array)), 5)
        ),
    }
    ray.shutdown()
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
