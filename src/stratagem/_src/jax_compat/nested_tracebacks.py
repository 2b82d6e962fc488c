"""Keeps JAX from recording a traceback within another one, which frees code objects that are in use.

JAX walks the stack for each array and each traced operation. It collects the code objects in one buffer per
thread, and makes Python objects on the way. Before Python 3.12 that can start a garbage collection, which
runs Python code: finalizers, callbacks and, after those, signal handlers. If these use JAX, the nested walk
overwrites the buffer. The references of the first walk are never returned, and those of the nested one are
returned twice, until functions of the program lose their code and the interpreter crashes.

So there are no tracebacks during a collection. Arrays that are made there have none.
"""

from __future__ import annotations

import functools
import gc
import importlib
import operator
from typing import Any

from stratagem._src.process.garbage_collection import GC_RUNS_ON_ALLOCATION

__all__ = ["prevent_nested_tracebacks"]


class _Callbacks:
    """Calls of ``setter`` as attributes: ``getattr(self, phase, info)`` runs no bytecode.

    A callback of the garbage collector with bytecode of its own would let signal handlers run in it.
    """

    def __init__(self, setter: Any) -> None:
        self.setter = setter


class _First(_Callbacks):
    start = property(operator.methodcaller("setter", False))


class _Last(_Callbacks):
    stop = property(operator.methodcaller("setter", True))


_registered: list[bool] = []


def prevent_nested_tracebacks() -> None:
    """Turns JAX's tracebacks off while the garbage collector runs, if it runs on allocations."""
    if _registered or not GC_RUNS_ON_ALLOCATION:
        return
    _registered.append(True)
    try:
        module = importlib.import_module("jax._src.lib")._jax
        setter, is_on = module.set_tracebacks_enabled, module.tracebacks_enabled()
    except (ImportError, AttributeError):
        return  # handlers that use JAX may crash the process, as without this module
    if is_on:
        gc.callbacks.insert(0, functools.partial(getattr, _First(setter)))
        gc.callbacks.append(functools.partial(getattr, _Last(setter)))
