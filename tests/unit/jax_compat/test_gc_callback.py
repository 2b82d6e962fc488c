"""Signal handlers and JAX's callback of the garbage collector."""

import functools
import gc
import operator
import signal
import sys

import pytest

from stratagem._src.jax_compat import gc_callback
from stratagem._src.process.garbage_collection import GC_RUNS_ON_ALLOCATION


@pytest.fixture
def seen():
    """What has happened; a handler of SIGALRM notes itself."""
    seen = []
    before = signal.signal(signal.SIGALRM, lambda *_: seen.append("handler"))
    yield seen
    signal.signal(signal.SIGALRM, before)


@pytest.mark.skipif(not GC_RUNS_ON_ALLOCATION, reason="collections start between bytecodes")
def test_no_handler_runs_in_a_collection(seen):
    gc_callback.keep_handlers_out_of_gc_callback()
    gc.collect()
    # One call without bytecode: the collection comes before any other moment for the handler.
    calls = [
        functools.partial(signal.setitimer, signal.ITIMER_REAL, 1e-6),
        functools.partial(sum, range(1_000_000)),
        functools.partial(gc.collect, 0),
        functools.partial(seen.append, "collected"),
    ]
    list(map(operator.call, calls))
    assert seen == ["collected", "handler"]


def test_the_garbage_of_xla_is_collected(monkeypatch):
    library, collected = sys.modules["jax._src.lib"], []
    monkeypatch.setattr(gc, "callbacks", [library._xla_gc_callback])
    monkeypatch.setattr(library._jax, "collect_garbage", lambda: collected.append(None))
    gc_callback.keep_handlers_out_of_gc_callback()
    for phase in ("start", "stop"):
        gc.callbacks[0](phase, {})
    assert len(collected) == 2


def test_another_jax_is_left_alone(monkeypatch):
    monkeypatch.delattr(sys.modules["jax._src.lib"], "_xla_gc_callback")
    before = list(gc.callbacks)
    gc_callback.keep_handlers_out_of_gc_callback()
    assert gc.callbacks == before
