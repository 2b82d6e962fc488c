"""Keeps signal handlers from running in JAX's callback of the garbage collector.

JAX walks the stack for each array and each traced operation. It collects the code objects in one buffer per
thread, and makes Python objects on the way. Before Python 3.12 that can start a garbage collection. JAX's
callback of the collector is a Python function, in which pending signal handlers run. If a handler uses JAX,
its walk overwrites the buffer: the references of the first walk are never returned, and those of the second
one are returned twice, until functions of the program lose their code and the interpreter crashes.

So the callback is replaced by one that runs no bytecode. Handlers then run after the collection, unless
it calls a finalizer that is written in Python. JAX's tracebacks cannot be turned off meanwhile: the switch
is for all threads, and an array that another one makes at that moment raises an error.
"""

from __future__ import annotations

import functools
import gc
import importlib
import operator
from collections.abc import Callable

from stratagem._src.process.garbage_collection import GC_RUNS_ON_ALLOCATION

__all__ = ["keep_handlers_out_of_gc_callback"]


class _Phases:
    """Calls ``collect`` when ``start`` or ``stop`` is read: ``getattr(self, phase, info)``, all in C."""

    def __init__(self, collect: Callable[[], object]) -> None:
        self.collect = collect

    start = stop = property(operator.methodcaller("collect"))


def keep_handlers_out_of_gc_callback() -> None:
    """Replaces JAX's callback of the garbage collector, if collections start on allocations."""
    if not GC_RUNS_ON_ALLOCATION:
        return
    try:
        library = importlib.import_module("jax._src.lib")
        callback, collect = library._xla_gc_callback, library._jax.collect_garbage
        position = gc.callbacks.index(callback)
    except (ImportError, AttributeError, ValueError):
        return  # JAX has changed, or the callback is replaced already
    gc.callbacks[position] = functools.partial(getattr, _Phases(collect))
