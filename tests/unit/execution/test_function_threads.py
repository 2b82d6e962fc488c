"""Functions that are compiled and called in several threads."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import pytest

import stratagem as sg

STRATEGIES = {
    "default": sg.distribute.get_strategy,
    "two": lambda: sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"]),
}
PATIENCE = 60


class Compilations:
    """Stops compilations while ``go_on`` is clear."""

    def __init__(self):
        self.begun = threading.Semaphore(0)
        self.go_on = threading.Event()
        self.go_on.set()
        self.count = 0

    def __call__(self, event, **_):
        if event == "/jax/compilation_cache/compile_requests_use_cache":
            self.count += 1
            self.begun.release()
            assert self.go_on.wait(PATIENCE)


@pytest.fixture
def compilations(tmp_path):
    """JAX asks its cache on disk in the middle of a compilation, and tells who listens."""
    from jax.experimental.compilation_cache import compilation_cache

    listener = Compilations()
    compilation_cache.set_cache_dir(str(tmp_path))
    jax.monitoring.register_event_listener(listener)
    yield listener
    listener.go_on.set()
    jax.monitoring.unregister_event_listener(listener)
    compilation_cache.reset_cache()
    jax.config.update("jax_compilation_cache_dir", None)


@pytest.fixture(params=STRATEGIES)
def strategy(request):
    return STRATEGIES[request.param]()


def make_step(strategy, v):
    @sg.function
    def step(x):
        v.assign_add(jnp.sum(x))
        return strategy.reduce("SUM", strategy.run(lambda: jnp.sum(x) * v), axis=None)

    return step


def test_other_variables_can_be_used_while_a_function_compiles(strategy, compilations):
    with strategy.scope():
        v, other = sg.Variable(0.0), sg.Variable(7.0)
    used, changed = make_step(strategy, v), make_step(strategy, other)
    changed(jnp.ones(3))
    x, more = jnp.ones(5), jnp.ones(3)
    float(other), float(v)
    compilations.go_on.clear()
    while compilations.begun.acquire(blocking=False):
        pass
    with ThreadPoolExecutor(2) as threads:
        result = threads.submit(used, x)
        assert compilations.begun.acquire(timeout=PATIENCE)
        reading = threads.submit(lambda: (float(other), float(v), float(changed(more))))
        assert reading.result(PATIENCE) == (10, 0, 39 * strategy.num_replicas_in_sync)
        assert not result.done()
        compilations.go_on.set()
        assert float(result.result(PATIENCE)) == 25 * strategy.num_replicas_in_sync


def test_different_functions_compile_at_the_same_time(strategy, compilations):
    with strategy.scope():
        steps = [make_step(strategy, sg.Variable(0.0)) for _ in range(2)]
    x = jnp.ones(5)
    while compilations.begun.acquire(blocking=False):
        pass
    compilations.go_on.clear()
    with ThreadPoolExecutor(2) as threads:
        results = [threads.submit(step, x) for step in steps]
        for _ in results:
            assert compilations.begun.acquire(timeout=PATIENCE)
        compilations.go_on.set()
        for result in results:
            assert float(result.result(PATIENCE)) == 25 * strategy.num_replicas_in_sync


def test_one_function_called_by_many_threads_compiles_once_for_each_kind(strategy):
    with strategy.scope():
        v = sg.Variable(0.0)
    step = make_step(strategy, v)
    together = threading.Barrier(6)

    def call(i):
        together.wait(PATIENCE)
        return step(jnp.ones(1 + i % 2))

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(call, range(6)))
    assert step.experimental_get_tracing_count() == 2
    assert float(v) == 9


def test_variables_are_created_once_by_a_function_that_many_threads_call_first():
    made = []
    together = threading.Barrier(4)

    @sg.function
    def step(x):
        if not made:
            made.append(sg.Variable(0.0))
        return made[0].assign_add(jnp.sum(x)) * 1

    def call(i):
        together.wait(PATIENCE)
        return step(jnp.ones(1 + i % 2))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(call, range(4)))
    assert len(made) == 1
    assert float(made[0]) == 6
