"""A coordinator whose workers and servers are killed and stopped while functions run."""

import contextlib
import gc
import os
import random
import signal
import subprocess
import sys
import threading
import time

import jax.numpy as jnp
import numpy as np
import psutil
import pytest
from processes import poll
from server_cluster import ServerCluster

import stratagem as sg
from stratagem.distribute.coordinator import (
    ClusterCoordinator,
    experimental_get_current_worker_index,
)

pytestmark = pytest.mark.timeout(90)


@pytest.fixture(scope="module")
def cluster():
    cluster = ServerCluster(workers=3, ps=1)
    yield cluster
    cluster.close()


@contextlib.contextmanager
def coordinating(cluster, **options):
    coordinator = ClusterCoordinator(cluster.strategy(), **options)
    try:
        yield coordinator
    finally:
        coordinator._dispatcher.stop()


@pytest.mark.slow
def test_workers_that_are_killed_again_and_again(cluster):
    with coordinating(cluster) as coordinator:
        with coordinator.strategy.scope():
            count = sg.Variable(0.0)
        iterator = iter(
            coordinator.create_per_worker_dataset(lambda: sg.data.Dataset.range(100).repeat())
        )

        @sg.function
        def step(iterator, x):
            count.assign_add(1.0)
            return x * 2.0, next(iterator)

        def slow_step(iterator, x):
            time.sleep(0.005)
            return step(iterator, x)

        kills = []

        def kill_workers():
            choose = random.Random(0)
            for _ in range(6):
                worker = choose.randrange(3)
                poll(lambda worker=worker: worker in coordinator._dispatcher.state.workers, 30)
                time.sleep(choose.random() / 5)
                cluster.kill("worker", worker)
                kills.append(worker)
                cluster.start("worker", worker)

        killer = threading.Thread(target=kill_workers)
        killer.start()
        values = []
        while killer.is_alive():
            values.append(coordinator.schedule(slow_step, (iterator, jnp.float32(len(values)))))
            poll(lambda: coordinator._dispatcher.state.num_queued < 20, 60)
        killer.join()
        coordinator.join()
        assert len(kills) == 6
        assert len(values) > 100
        assert coordinator.done()
        assert [float(value.fetch()[0]) for value in values] == [
            2.0 * i for i in range(len(values))
        ]
        assert float(count) >= len(values)
        # The one that was killed last works again, and its dataset has begun anew.
        again = coordinator.schedule(lambda it: next(it), (iterator,), worker=kills[-1])
        assert 0 <= again.fetch() < 100


def test_a_worker_that_is_stopped(cluster):
    with coordinating(cluster, worker_timeout=1.0, closures_per_worker=1) as coordinator:
        where = [coordinator.schedule(os.getpid, worker=i).fetch() for i in range(3)]
        cluster.signal("worker", 1, signal.SIGSTOP)
        try:
            poll(lambda: psutil.Process(where[1]).status() == psutil.STATUS_STOPPED)
            values = [
                coordinator.schedule(experimental_get_current_worker_index) for _ in range(30)
            ]
            coordinator.join()
            assert {int(v.fetch()) for v in values} <= {0, 2}
        finally:
            cluster.signal("worker", 1, signal.SIGCONT)
        assert coordinator.schedule(os.getpid, worker=1).fetch() == where[1]


def test_a_result_moves_between_workers_and_is_computed_again(cluster):
    with coordinating(cluster) as coordinator:
        large = coordinator.schedule(lambda: np.arange(1e6), worker=0)
        total = coordinator.schedule(np.sum, (large,), worker=1)
        assert total.fetch() == np.arange(1e6).sum()
        free = coordinator.schedule(lambda: np.arange(1e6))
        coordinator.join()
        holder = free._closure.where
        cluster.kill("worker", holder)
        later = coordinator.schedule(np.sum, (free,))
        assert later.fetch() == np.arange(1e6).sum()
        cluster.start("worker", holder)


def test_no_memory_is_kept(cluster):
    def quick(x):
        return x

    with coordinating(cluster) as coordinator:
        state = coordinator._dispatcher.state

        def run(number):
            for i in range(number):
                coordinator.schedule(quick, (i,))
                if i % 100 == 0:
                    coordinator.schedule(lambda: np.ones(500_000))
            coordinator.join()

        run(1000)
        before = [cluster.rss("worker", i) for i in range(3)]
        run(4000)
        grown = [cluster.rss("worker", i) - rss for i, rss in enumerate(before)]
        assert sum(grown) < 80_000_000, "results of 160 MB in all were kept"
        gc.collect()
        poll(lambda: not any(state._held.values()))
        assert len(coordinator._dispatcher.definitions._by_function) <= 2


COORDINATOR = """
import sys, json, time
sys.path[:0] = json.loads(sys.argv[2])
import stratagem as sg
resolver = sg.distribute.cluster_resolver.SimpleClusterResolver(
    sg.train.ClusterSpec(json.loads(sys.argv[1])))
strategy = sg.distribute.ParameterServerStrategy(resolver)
coordinator = sg.distribute.coordinator.ClusterCoordinator(strategy)
for _ in range(600):
    coordinator.schedule(time.sleep, (0.2,))
print("scheduled", flush=True)
coordinator.join()
"""


def test_a_coordinator_that_is_killed(cluster):
    import json

    arguments = [json.dumps(cluster.cluster), json.dumps(sys.path)]
    first = subprocess.Popen(
        [sys.executable, "-c", COORDINATOR, *arguments], stdout=subprocess.PIPE, text=True
    )
    try:
        assert first.stdout.readline() == "scheduled\n"
    finally:
        first.kill()
        first.wait()
        first.stdout.close()
    with coordinating(cluster) as second:
        values = [second.schedule(abs, (-i,), worker=i % 3) for i in range(30)]
        assert second.fetch(values) == list(range(30))


def test_a_parameter_server_that_is_killed(cluster):
    with coordinating(cluster) as coordinator:
        with coordinator.strategy.scope():
            v = sg.Variable(np.zeros(4))

        def read_on():
            while True:
                v.read_value()

        values = [coordinator.schedule(read_on) for _ in range(8)]
        poll(lambda: coordinator._dispatcher.state.num_in_flight == 6)
        cluster.kill("ps", 0)
        lost = pytest.raises(
            sg.errors.PSUnavailableError, match=rf"/job:ps/task:0 at {cluster.cluster['ps'][0]}"
        )
        with lost:
            values[-1].fetch()
        with lost:
            coordinator.join()
        with lost:
            poll(lambda: coordinator.done() and False)
        with lost:
            poll(lambda: coordinator.schedule(abs, (1,)) and False)
    cluster.start("ps", 0)


def test_a_coordinator_ends_with_the_last_reference(cluster):
    coordinator = ClusterCoordinator(cluster.strategy())
    dispatcher = coordinator._dispatcher
    value = coordinator.schedule(np.ones, (100_000,))
    del coordinator
    gc.collect()
    assert value.fetch().shape == (100_000,), "whoever has a result can still ask for it"
    del value
    gc.collect()
    poll(lambda: dispatcher.stopped)
    poll(lambda: not [t for t in threading.enumerate() if t.name.startswith("coordinator-")])
