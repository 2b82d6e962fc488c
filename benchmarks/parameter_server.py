"""Asynchronous training on loopback: closures, pull and push, rows of a table, and how they scale.

Servers and workers are processes of their own. With ``--tensorflow-python`` and ``--ray-python`` naming
interpreters that have TensorFlow or Ray, the same work runs there too, one side after the other.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import stratagem as sg
from stratagem._src.cluster.reserved_ports import ReservedPorts

ARRAY = np.arange(25_000_000 // 4, dtype=np.float32)
TABLE_SHAPE, NUM_LOOKED_UP = (1_000_000, 64), 4096


class Row(NamedTuple):
    """A figure, and how many times better than each peer's it should be."""

    name: str
    higher_is_better: bool
    tensorflow: float
    ray: float | None


ROWS = [
    Row("empty closures/s", True, 5, None),
    Row("increments/s", True, 5, None),
    Row("round trip, ms", False, 3, 1),
    Row("pull 25 MB, ms", False, 1, 1),
    Row("push 25 MB, ms", False, 1, 1),
]


def serve(cluster: dict[str, list[str]], job_name: str, task_index: int) -> None:
    sg.distribute.Server(cluster, job_name, task_index).join()


@contextmanager
def cluster_of(num_workers: int, num_ps: int) -> Iterator[sg.train.ClusterSpec]:
    """Starts the tasks of a cluster, and ends them."""
    processes = multiprocessing.get_context("spawn")
    with ReservedPorts(num_workers + num_ps) as held:
        ports = iter(held)
        jobs = {"worker": num_workers, "ps": num_ps}
        cluster = {job: [f"localhost:{next(ports)}" for _ in range(n)] for job, n in jobs.items()}
        tasks = [
            processes.Process(target=serve, args=(cluster, job, index), daemon=True)
            for job, number in jobs.items()
            for index in range(number)
        ]
        for task in tasks:
            task.start()
        try:
            yield sg.train.ClusterSpec(cluster)
        finally:
            for task in tasks:
                task.kill()
                task.join()


def strategy_on(
    spec: sg.train.ClusterSpec, shards: int = 1
) -> sg.distribute.ParameterServerStrategy:
    resolver = sg.distribute.cluster_resolver.SimpleClusterResolver(spec)
    partitioner = sg.distribute.partitioners.FixedShardsPartitioner(shards)
    return sg.distribute.ParameterServerStrategy(resolver, partitioner if shards > 1 else None)


def median_of(rounds: int, measure: Callable[[], float]) -> float:
    measure()
    return statistics.median(measure() for _ in range(rounds))


def milliseconds(call: Callable[[], Any], count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count * 1e3


def closures_per_second(
    coordinator: sg.distribute.coordinator.ClusterCoordinator, fn: Callable[[], Any], count: int
) -> float:
    start = time.perf_counter()
    for _ in range(count):
        coordinator.schedule(fn)
    coordinator.join()
    return count / (time.perf_counter() - start)


@sg.function
def empty() -> int:
    return 0


def incrementing(strategy: sg.distribute.ParameterServerStrategy) -> Callable[[], Any]:
    with strategy.scope():
        counter = sg.Variable(0)

    @sg.function
    def increment() -> None:
        counter.assign_add(1)

    return increment


def measure_basics(rounds: int, count: int) -> dict[str, float]:
    with cluster_of(num_workers=2, num_ps=1) as spec:
        strategy = strategy_on(spec)
        coordinator = sg.distribute.coordinator.ClusterCoordinator(strategy)
        increment = incrementing(strategy)
        with strategy.scope():
            variable = sg.Variable(ARRAY)
        return {
            "empty closures/s": median_of(
                rounds, lambda: closures_per_second(coordinator, empty, count)
            ),
            "increments/s": median_of(
                rounds, lambda: closures_per_second(coordinator, increment, count)
            ),
            "round trip, ms": median_of(
                rounds, lambda: milliseconds(lambda: coordinator.schedule(empty).fetch(), 200)
            ),
            "pull 25 MB, ms": median_of(rounds, lambda: milliseconds(variable.numpy, 5)),
            "push 25 MB, ms": median_of(
                rounds, lambda: milliseconds(lambda: variable.assign(ARRAY), 5)
            ),
        }


def measure_rows(rounds: int) -> dict[str, float]:
    with cluster_of(num_workers=0, num_ps=1) as spec:
        with strategy_on(spec).scope():
            table = sg.Variable(lambda: np.zeros(TABLE_SHAPE, np.float32))
        ids = np.random.default_rng(0).integers(0, TABLE_SHAPE[0], NUM_LOOKED_UP)
        updates = sg.IndexedSlices(np.ones((NUM_LOOKED_UP, TABLE_SHAPE[1]), np.float32), ids)
        return {
            "read rows": median_of(
                rounds, lambda: milliseconds(lambda: table.sparse_read(ids), 10)
            ),
            "add to rows": median_of(
                rounds, lambda: milliseconds(lambda: table.scatter_add(updates), 10)
            ),
            "pull the table": median_of(2, lambda: milliseconds(table.numpy, 1)),
        }


def measure_servers(num_ps: int, rounds: int) -> tuple[float, float]:
    with cluster_of(num_workers=0, num_ps=num_ps) as spec:
        with strategy_on(spec, shards=num_ps).scope():
            variable = sg.Variable(ARRAY)
        return (
            median_of(rounds, lambda: milliseconds(variable.numpy, 5)),
            median_of(rounds, lambda: milliseconds(lambda: variable.assign(ARRAY), 5)),
        )


def measure_workers(num_workers: int, rounds: int, count: int) -> tuple[float, float]:
    with cluster_of(num_workers=num_workers, num_ps=1) as spec:
        strategy = strategy_on(spec)
        coordinator = sg.distribute.coordinator.ClusterCoordinator(strategy)
        increment = incrementing(strategy)
        for worker in range(num_workers):  # wait until each has compiled it
            coordinator.schedule(increment, worker=worker)
        coordinator.join()
        return (
            median_of(rounds, lambda: closures_per_second(coordinator, empty, count)),
            median_of(rounds, lambda: closures_per_second(coordinator, increment, count)),
        )


def measure_peer(python: str | None, script: str, rounds: int) -> dict[str, float]:
    if python is None:
        return {}
    done = subprocess.run(
        [python, str(Path(__file__).with_name(script))],
        input=json.dumps({"rounds": rounds, "num_floats": len(ARRAY)}),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{script} failed:\n{done.stderr}")
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def compare(row: Row, ours: float, theirs: float | None, wanted: float | None) -> str:
    if theirs is None:
        return f"{'':>10} {'':>7} {'':>7}"
    times = ours / theirs if row.higher_is_better else theirs / ours
    return f"{theirs:10.2f} {times:6.1f}x {'' if wanted is None else f'≥ {wanted:g}x':>7}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--closures", type=int, default=4000)
    parser.add_argument("--servers", type=int, nargs="*", default=[1, 2, 4])
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2, 4, 8])
    parser.add_argument("--tensorflow-python", metavar="PYTHON", help="interpreter with TensorFlow")
    parser.add_argument("--ray-python", metavar="PYTHON", help="interpreter with Ray")
    flags = parser.parse_args()
    # Workers end before their coordinators, which would say so.
    logging.getLogger("stratagem").setLevel(logging.ERROR)

    tensorflow = measure_peer(
        flags.tensorflow_python, "parameter_server_tensorflow.py", flags.rounds
    )
    ray = measure_peer(flags.ray_python, "parameter_server_ray.py", flags.rounds)
    figures = measure_basics(flags.rounds, flags.closures)
    print(f"{'2 workers, 1 server':20} {'stratagem':>10} {'tensorflow':>10} {'':16}{'ray':>10}")
    for row in ROWS:
        ours = figures[row.name]
        print(
            f"{row.name:20} {ours:10.2f} "
            f"{compare(row, ours, tensorflow.get(row.name), row.tensorflow)}"
            f"{compare(row, ours, ray.get(row.name), row.ray)}".rstrip(),
            flush=True,
        )

    print(f"\n{NUM_LOOKED_UP} rows of a table of {TABLE_SHAPE[0]} x {TABLE_SHAPE[1]} floats")
    for name, time_taken in measure_rows(flags.rounds).items():
        print(f"{name:20} {time_taken:10.2f} ms", flush=True)

    print(f"\n{'servers':20} {'pull 25 MB':>13} {'push 25 MB':>13}")
    for num_ps in flags.servers:
        pull, push = measure_servers(num_ps, flags.rounds)
        print(f"{num_ps:<20} {pull:10.2f} ms {push:10.2f} ms", flush=True)

    print(f"\n{'workers':20} {'empty/s':>13} {'increments/s':>13}")
    for num_workers in flags.workers:
        empties, increments = measure_workers(num_workers, flags.rounds, flags.closures)
        print(f"{num_workers:<20} {empties:13.0f} {increments:13.0f}", flush=True)


if __name__ == "__main__":
    main()
