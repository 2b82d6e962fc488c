"""Traces a function and detects whether it is pure, so that one trace stands for all of its calls.

The function is traced twice. It is impure if the two jaxprs differ, or if it reads a clock or a random
generator while it is traced.
"""

from __future__ import annotations

import contextlib
import datetime
import gc
import itertools
import os
import pickle
import random
import re
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import numpy as np

from stratagem._src.core.types import Jaxpr, JaxprConstant

__all__ = ["trace_if_pure"]

_LIBRARIES = frozenset({"jax", "jaxlib", "numpy"})
_CLOCKS = (time, datetime.datetime, datetime.date)
_ADDRESS = re.compile(r"0x[0-9a-f]+")


def trace_if_pure(trace: Callable[[], Any]) -> Any | None:
    """Returns the closed jaxpr that ``trace`` returns, or ``None`` if the traced function is impure."""
    observer = _Observer()
    with observer.watching():
        first, second = trace(), trace()
    return None if observer.saw_impure_call() or not _same(first, second) else first


class _Observer:
    """Profiles Python code, and detects reads of clocks and random generators."""

    def __init__(self) -> None:
        self._saw_clock_or_random = False
        self._generators: dict[int, tuple[Any, bytes]] = {}

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Observes the calls of the block."""
        self._watch_generator(np.random.mtrand._rand)
        before = sys.getprofile()
        with _without_garbage_collection():
            sys.setprofile(self._on_call)
            try:
                yield
            finally:
                _restore_profiler(before)

    def saw_impure_call(self) -> bool:
        """Returns whether the code read a clock or a random generator."""
        return self._saw_clock_or_random or any(
            _generator_state(generator) != state for generator, state in self._generators.values()
        )

    def _on_call(self, frame: FrameType, event: str, called: Any) -> None:
        if event not in ("call", "c_call"):
            return
        # JAX reads the clock to time itself.
        if frame.f_globals.get("__name__", "").partition(".")[0] in _LIBRARIES:
            return
        if event == "c_call":
            owner = getattr(called, "__self__", None)
            clock = any(owner is each for each in _CLOCKS)
            if clock or called is os.urandom or isinstance(owner, random.Random):
                self._saw_clock_or_random = True
            return
        # The profiler does not see calls of NumPy's generator methods. A changed state reveals them, so the
        # states of all generators that the code can reach are compared before and after.
        for value in _reachable_values(frame):
            self._watch_generator(value)

    def _watch_generator(self, value: Any) -> None:
        if isinstance(value, (np.random.Generator, np.random.RandomState)):
            self._generators.setdefault(id(value), (value, _generator_state(value)))


@contextlib.contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Prevents that finalizers of unrelated objects run here and read a clock."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _restore_profiler(before: Any) -> None:
    # cProfile installs an object that is not callable, so it cannot be passed to setprofile.
    if hasattr(before, "enable"):
        before.enable()
    else:
        sys.setprofile(before)


def _reachable_values(frame: FrameType) -> Iterator[Any]:
    """Yields the locals and globals that the code of a frame refers to, and their attributes."""
    names = (frame.f_globals.get(name) for name in frame.f_code.co_names)
    for value in itertools.chain(frame.f_locals.values(), names):
        yield value
        if type(value).__module__.partition(".")[0] not in _LIBRARIES:
            yield from getattr(value, "__dict__", {}).values()


def _generator_state(generator: Any) -> bytes:
    if isinstance(generator, np.random.Generator):
        return pickle.dumps(generator.bit_generator.state)
    return pickle.dumps(generator.get_state(legacy=False))


def _same(first: Jaxpr, second: Jaxpr) -> bool:
    return (
        _ADDRESS.sub("", str(first.jaxpr)) == _ADDRESS.sub("", str(second.jaxpr))
        and len(first.consts) == len(second.consts)
        and all(map(_same_constant, first.consts, second.consts))
    )


def _same_constant(first: JaxprConstant, second: JaxprConstant) -> bool:
    if first is second:
        return True
    if not hasattr(first, "dtype") or not isinstance(first.dtype, np.dtype):
        return False
    return bool(first.dtype == second.dtype and np.array_equal(first, second))
