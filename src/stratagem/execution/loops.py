"""Functions that loop over a distributed dataset: a Python loop around compiled steps."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stratagem.execution.function import Function

__all__ = ["LoopsOverDataset", "StepCache", "compiled_step", "looping"]


class LoopsOverDataset(Exception):
    """A function that is being traced iterates over a distributed dataset."""


class StepCache:
    """The compiled form of each function that a loop gives to ``strategy.run``.

    A nested function is a new object each time its outer function is called; it counts as the same
    if its code and what it captured are the same.
    """

    def __init__(self, make: Callable[[Callable[..., Any]], Function]) -> None:
        self._make = make
        self._steps: dict[Any, Function] = {}

    def get(self, fn: Callable[..., Any]) -> Function:
        """Returns the compiled form of ``fn``."""
        key = _identity(fn)
        if key not in self._steps:
            self._steps[key] = self._make(fn)
        return self._steps[key]

    def steps(self) -> list[Function]:
        """Returns every compiled form."""
        return list(self._steps.values())


class _Active(threading.local):
    def __init__(self) -> None:
        self.caches: list[StepCache | None] = []


_active = _Active()


@contextlib.contextmanager
def looping(cache: StepCache | None) -> Iterator[None]:
    """Makes every ``strategy.run`` of the block run compiled; ``None`` ends that for the block."""
    _active.caches.append(cache)
    try:
        yield
    finally:
        _active.caches.pop()


def compiled_step(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the compiled form of ``fn`` inside a loop, and ``fn`` itself elsewhere."""
    cache = _active.caches[-1] if _active.caches else None
    return fn if cache is None else cache.get(fn)


def _identity(fn: Callable[..., Any]) -> Any:
    code = getattr(fn, "__code__", None)
    if code is None:
        return id(fn)
    cells = [cell.cell_contents for cell in getattr(fn, "__closure__", None) or ()]
    defaults = [*(getattr(fn, "__defaults__", None) or ())]
    defaults += (getattr(fn, "__kwdefaults__", None) or {}).values()
    bound = [getattr(fn, "__self__", None)]
    return (code, *map(id, cells), *map(id, defaults), *map(id, bound))
