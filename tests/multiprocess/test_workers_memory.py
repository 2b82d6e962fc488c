"""Workers on one machine exchange through memory, in one order, whatever else their programs do."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stratagem as sg
from stratagem._src.shared_memory.workers import workers_exchange
from stratagem.testing import run_cluster

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("mark")]

WORKERS = 3
STEPS = 30
LARGE = 50_000


def many_collectives(x):
    """Collectives of which XLA could begin any first: ours, its own, in loops and in branches."""

    def add_sum(_, value):
        return value + jax.lax.psum(value, "replica")

    rows = jnp.outer(jnp.arange(1.0, WORKERS + 1), x)
    large = jnp.full((LARGE,), x[0])
    context = sg.distribute.get_replica_context()
    return {
        "sum": context.all_reduce("SUM", x),
        "mean": context.all_reduce("MEAN", large)[:2],
        "int": jax.lax.psum(x.astype(jnp.int32), "replica"),
        "complex": jax.lax.psum(x + 1j * x, "replica").imag,
        "most": jax.lax.pmax(x, "replica"),
        "gathered": context.all_gather(x, 0),
        "scattered": jax.lax.psum_scatter(rows, "replica", scatter_dimension=0, tiled=True)[0],
        "sent": jax.lax.ppermute(x, "replica", [(i, (i + 1) % WORKERS) for i in range(WORKERS)]),
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


def expected(worker, xs):
    total = sum(xs)

    def after_loop(values, turns):
        for _ in range(turns):
            values = [value + sum(values) for value in values]
        return values

    return {
        "sum": total,
        "mean": np.full(2, total[0] / WORKERS),
        "int": total,
        "complex": total,
        "most": np.max(xs, axis=0),
        "gathered": np.concatenate(xs),
        "scattered": (worker + 1) * total,
        "sent": xs[worker - 1],
        "loop": after_loop(xs, 3)[worker],
        "other loop": after_loop([1.0] * WORKERS, 2)[worker],
        "branch": 2 * total,
        "after": sum(total * (x[0] + 1) for x in xs),
    }


def exchange_with_one_processor():
    # With one thread for all of a program, a collective that waits keeps the others from beginning.
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    strategy = sg.distribute.MultiWorkerMirroredStrategy(
        communication_options=sg.distribute.experimental.CommunicationOptions(timeout_seconds=60)
    )
    worker = strategy.cluster_resolver.task_id
    xs = [np.array([i + 1, 2 * i], np.float32) for i in range(WORKERS)]
    values = strategy.experimental_distribute_values_from_function(lambda _: xs[worker])
    step = sg.function(lambda v: strategy.run(many_collectives, args=(v,)))
    for _ in range(STEPS):
        results = step(values)
    for name, wanted in expected(worker, xs).items():
        [found] = strategy.experimental_local_results(results[name])
        np.testing.assert_allclose(found, wanted, err_msg=name)
    eager = strategy.reduce("SUM", values, axis=None)
    np.testing.assert_array_equal(eager, sum(xs))
    return workers_exchange() is not None


def test_every_collective_has_its_turn():
    assert run_cluster(exchange_with_one_processor, WORKERS) == [True] * WORKERS
