"""Workers on one machine exchange through memory, in one order, whatever else their programs do."""

import contextlib
import os
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stratagem as sg
from stratagem._src.collectives.collective_tokens import CollectiveTokens
from stratagem.testing import run_cluster

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("mark")]

LAYOUTS = [(3, 1), (2, 2)]
"""Workers, and devices of each."""

STEPS = 30
LARGE = 50_000


def many_collectives(x):
    """Collectives of which XLA could begin any first: ours, its own, in loops and in branches."""

    def add_sum(_, value):
        return value + jax.lax.psum(value, "replica")

    context = sg.distribute.get_replica_context()
    count = context.num_replicas_in_sync
    rows = jnp.outer(jnp.arange(1.0, count + 1), x)
    large = jnp.full((LARGE,), x[0])
    return {
        "sum": context.all_reduce("SUM", x),
        "mean": context.all_reduce("MEAN", large)[:2],
        "int": jax.lax.psum(x.astype(jnp.int32), "replica"),
        "complex": jax.lax.psum(x + 1j * x, "replica").imag,
        "most": jax.lax.pmax(x, "replica"),
        "gathered": context.all_gather(x, 0),
        "scattered": jax.lax.psum_scatter(rows, "replica", scatter_dimension=0, tiled=True)[0],
        "scattered columns": jax.lax.psum_scatter(rows.T, "replica", scatter_dimension=1),
        "sent": jax.lax.ppermute(x, "replica", [(i, (i + 1) % count) for i in range(count)]),
        "loop": jax.lax.fori_loop(0, 3, add_sum, x),
        "other loop": jax.lax.fori_loop(0, 2, add_sum, jnp.float32(1)),
        "branch": jax.lax.cond(
            jax.lax.psum(x[0], "replica") > 0,
            lambda v: jax.lax.psum(v * 2, "replica"),
            lambda v: jax.lax.psum(v * 3, "replica"),
            x,
        ),
        "after": jax.lax.psum(jax.lax.psum(x, "replica") * (x[0] + 1), "replica"),
    }


def expected(replica, xs):
    total, count = sum(xs), len(xs)

    def after_loop(values, turns):
        for _ in range(turns):
            values = [value + sum(values) for value in values]
        return values

    return {
        "sum": total,
        "mean": np.full(2, total[0] / count),
        "int": total,
        "complex": total,
        "most": np.max(xs, axis=0),
        "gathered": np.concatenate(xs),
        "scattered": (replica + 1) * total,
        "scattered columns": (replica + 1) * total,
        "sent": xs[replica - 1],
        "loop": after_loop(xs, 3)[replica],
        "other loop": after_loop([1.0] * count, 2)[replica],
        "branch": 2 * total,
        "after": sum(total * (x[0] + 1) for x in xs),
    }


@contextlib.contextmanager
def other_programs():
    """Has every device compute something else beside, in the same threads of XLA's."""
    over = threading.Event()
    square = jax.jit(lambda m: m @ m)
    matrices = [jax.device_put(np.eye(64), device) for device in jax.local_devices()]

    def compute():
        while not over.wait(0.001):
            jax.block_until_ready([square(matrix) for matrix in matrices])

    thread = threading.Thread(target=compute)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def exchange_with_one_processor():
    # With one thread for all of a program, a collective that waits keeps the others from beginning.
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    strategy = sg.distribute.MultiWorkerMirroredStrategy(
        communication_options=sg.distribute.experimental.CommunicationOptions(timeout_seconds=60)
    )
    count = strategy.num_replicas_in_sync
    xs = [np.array([i + 1, 2 * i], np.float32) for i in range(count)]
    values = strategy.experimental_distribute_values_from_function(
        lambda context: xs[context.replica_id_in_sync_group]
    )
    step = sg.function(lambda v: strategy.run(many_collectives, args=(v,)))
    with other_programs():
        for _ in range(STEPS):
            results = step(values)
    first = strategy.replica_group.first_local
    for name in results:
        for number, found in enumerate(strategy.experimental_local_results(results[name])):
            wanted = expected(first + number, xs)[name]
            np.testing.assert_allclose(found, wanted, err_msg=name)
    eager = strategy.reduce("SUM", values, axis=None)
    np.testing.assert_array_equal(eager, sum(xs))
    return CollectiveTokens(strategy.replica_group).shares_memory


@pytest.mark.parametrize(("workers", "devices"), LAYOUTS)
def test_every_collective_has_its_turn(workers, devices):
    shared = run_cluster(exchange_with_one_processor, workers, devices_per_worker=devices)
    assert shared == [True] * workers
