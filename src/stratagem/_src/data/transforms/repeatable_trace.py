"""Tracing a function so as to see whether one trace stands for all of its calls.

It is traced twice. If the two programs differ, or if the function asked a clock or a random generator
on the way, its result depends on more than its argument.
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

__all__ = ["repeatable_trace"]

_LIBRARIES = frozenset({"jax", "jaxlib", "numpy"})
_CLOCKS = (time, datetime.datetime, datetime.date)
_ADDRESS = re.compile(r"0x[0-9a-f]+")


def repeatable_trace(trace: Callable[[], Any]) -> Any | None:
    """Returns what ``trace`` returns, a closed jaxpr, or ``None`` if the next may be another one."""
    observer = _Observer()
    with observer.watching():
        first, second = trace(), trace()
    return None if observer.saw_a_draw() or not _same(first, second) else first


class _Observer:
    """Looks on while Python code runs, and notices clocks and random generators that it asks."""

    def __init__(self) -> None:
        self._asked = False
        self._generators: dict[int, tuple[Any, bytes]] = {}

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Watches what the block calls."""
        self._watch_generator(np.random.mtrand._rand)
        before = sys.getprofile()
        with _without_garbage_collection():
            sys.setprofile(self._notice)
            try:
                yield
            finally:
                _go_on_profiling(before)

    def saw_a_draw(self) -> bool:
        """Returns whether something was asked whose answers differ."""
        return self._asked or any(
            _generator_state(generator) != state for generator, state in self._generators.values()
        )

    def _notice(self, frame: FrameType, event: str, called: Any) -> None:
        if event not in ("call", "c_call"):
            return
        # JAX looks at the clock to time itself.
        if frame.f_globals.get("__name__", "").partition(".")[0] in _LIBRARIES:
            return
        if event == "c_call":
            owner = getattr(called, "__self__", None)
            clock = any(owner is each for each in _CLOCKS)
            if clock or called is os.urandom or isinstance(owner, random.Random):
                self._asked = True
            return
        # Methods of NumPy's generators are not seen when they are called, only by what they leave.
        for value in _in_sight(frame):
            self._watch_generator(value)

    def _watch_generator(self, value: Any) -> None:
        if isinstance(value, (np.random.Generator, np.random.RandomState)):
            self._generators.setdefault(id(value), (value, _generator_state(value)))


@contextlib.contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Lets no finalizer of something else run here, and ask a clock."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _go_on_profiling(before: Any) -> None:
    # The object of cProfile is no function that could be called for each event.
    if hasattr(before, "enable"):
        before.enable()
    else:
        sys.setprofile(before)


def _in_sight(frame: FrameType) -> Iterator[Any]:
    """Yields what the code of a frame can name, and the attributes of that."""
    names = (frame.f_globals.get(name) for name in frame.f_code.co_names)
    for value in itertools.chain(frame.f_locals.values(), names):
        yield value
        if type(value).__module__.partition(".")[0] not in _LIBRARIES:
            yield from getattr(value, "__dict__", {}).values()


def _generator_state(generator: Any) -> bytes:
    if isinstance(generator, np.random.Generator):
        return pickle.dumps(generator.bit_generator.state)
    return pickle.dumps(generator.get_state(legacy=False))


def _same(first: Any, second: Any) -> bool:
    return (
        _ADDRESS.sub("", str(first.jaxpr)) == _ADDRESS.sub("", str(second.jaxpr))
        and len(first.consts) == len(second.consts)
        and all(map(_same_constant, first.consts, second.consts))
    )


def _same_constant(first: Any, second: Any) -> bool:
    if first is second:
        return True
    if not hasattr(first, "dtype") or not isinstance(first.dtype, np.dtype):
        return False
    return bool(first.dtype == second.dtype and np.array_equal(first, second))
