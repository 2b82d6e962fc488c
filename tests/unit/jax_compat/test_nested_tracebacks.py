"""JAX's walk of the stack while a garbage collection interrupts another one."""

import gc
import sys

import jax
import pytest
from jax.extend import source_info_util

from stratagem._src.jax_compat import nested_tracebacks
from stratagem._src.process.garbage_collection import GC_RUNS_ON_ALLOCATION


def outer(depth):
    return source_info_util.current() if depth == 0 else outer(depth - 1)


@pytest.fixture
def collections():
    """Calls what is in the list in each collection, and starts one at each allocation."""
    calls, before = [], gc.get_threshold()

    def callback(phase, _):
        for call in calls:
            call(phase)

    gc.callbacks.insert(1, callback)
    gc.set_threshold(1)
    yield calls
    gc.set_threshold(*before)
    gc.callbacks.remove(callback)


def test_tracebacks_in_collections_free_no_code(collections):
    nested_tracebacks.prevent_nested_tracebacks()
    code = source_info_util.current.__code__
    kept = [code] * 10_000  # without the guard each traceback frees a reference too many
    found = []
    collections.append(lambda _: found.append(source_info_util.current().traceback))
    before = sys.getrefcount(code)
    for _ in range(200):
        outer(3)
    collections.clear()
    if GC_RUNS_ON_ALLOCATION:
        assert len(found) > 200
        assert set(found) == {None}
    found.clear()
    assert abs(sys.getrefcount(code) - before) < 10
    assert len(kept) == 10_000


def test_operations_outside_of_collections_keep_their_tracebacks():
    nested_tracebacks.prevent_nested_tracebacks()
    gc.collect()
    jaxpr = jax.make_jaxpr(lambda x: x + 1)(1.0)
    assert "test_nested_tracebacks.py" in str(jaxpr.eqns[0].source_info.traceback)


def test_jax_without_the_switch_is_left_alone(monkeypatch):
    jaxlib = sys.modules["jax._src.lib"]._jax
    monkeypatch.delattr(jaxlib, "set_tracebacks_enabled")
    monkeypatch.setattr(nested_tracebacks, "_registered", [])
    before = list(gc.callbacks)
    nested_tracebacks.prevent_nested_tracebacks()
    assert gc.callbacks == before
