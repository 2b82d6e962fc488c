"""Callbacks to the host beside collectives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stratagem as sg

pytestmark = pytest.mark.about("calls")

SHAPE = jax.ShapeDtypeStruct((16, 64, 64), jnp.float32)  # 262 kB: JAX copies it in another thread


def by_debug_callback(fn, x):
    jax.debug.callback(fn, x)
    return x


def by_io_callback(fn, x):
    return jax.experimental.io_callback(fn, SHAPE, x)


def by_pure_callback(fn, x):
    return jax.pure_callback(fn, SHAPE, x)


@pytest.mark.parametrize("call", [by_debug_callback, by_io_callback, by_pure_callback])
def test_a_callback_looks_at_arrays_while_other_replicas_wait(call, strategy, prepare):
    n = strategy.num_replicas_in_sync

    def look(x):
        assert np.asarray(x).shape == SHAPE.shape
        return np.asarray(x)

    def in_replica(x):
        replica = sg.distribute.get_replica_context()
        y = call(look, jnp.full(SHAPE.shape, x, SHAPE.dtype))
        mean = replica.all_reduce("MEAN", y[0, 0])
        y = call(look, y + mean[0])
        return replica.all_gather(y[:1, 0, 0], axis=0).sum() / n

    @prepare
    def step(x):
        return strategy.reduce("MEAN", strategy.run(in_replica, args=(x,)), axis=None)

    for number in range(20):
        assert float(step(jnp.float32(number))) == 2 * number


def test_debug_callbacks_run_once_in_each_replica(strategy, prepare):
    seen = []

    def in_replica():
        replica = sg.distribute.get_replica_context().replica_id_in_sync_group

        def add(total, number):
            jax.debug.callback(lambda *seen_now: seen.append(seen_now), replica, number)
            return total + number, None

        return jax.lax.scan(add, 0, jnp.arange(2))[0]

    @prepare
    def step():
        return strategy.run(in_replica)

    jax.block_until_ready(strategy.experimental_local_results(step()))
    jax.effects_barrier()
    found = sorted((int(replica), int(number)) for replica, number in seen)
    count = len(strategy.experimental_local_results(step()))
    assert len(found) == 2 * count
    assert len(set(found)) == len(found)


@pytest.mark.parametrize("returns", ["nothing", "a number", "a variable"])
def test_callbacks_run_in_each_replica_that_returns_nothing(strategy, prepare, returns):
    """XLA has to be told whose callbacks they are, where no array tells it."""
    count = len(strategy.experimental_local_results(strategy.run(lambda: jnp.ones(()))))
    with strategy.scope():
        variable = sg.Variable(4.0)
    seen = []

    def in_replica():
        replica = sg.distribute.get_replica_context().replica_id_in_sync_group
        jax.debug.callback(lambda replica: seen.append(int(replica)), replica)
        jax.debug.callback(lambda: seen.append("without an argument"))

    @prepare
    def step():
        strategy.run(in_replica)
        for _ in sg.range(2):
            strategy.run(lambda: jax.debug.callback(lambda: seen.append("in a loop")))
        if returns == "a number":
            return jnp.float32(4)
        return variable.read_value() if returns == "a variable" else None

    for _ in range(2):  # compiles, and runs again
        seen.clear()
        result = step()
        jax.block_until_ready(result)
        jax.effects_barrier()
        assert result is None if returns == "nothing" else float(result) == 4
        assert len({of for of in seen if isinstance(of, int)}) == count
        assert seen.count("without an argument") == count
        assert seen.count("in a loop") == 2 * count
        assert len(seen) == 4 * count
