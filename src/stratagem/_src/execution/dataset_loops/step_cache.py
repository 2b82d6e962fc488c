"""Functions that loop over a distributed dataset: a Python loop around compiled steps."""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from stratagem._src.execution.bound_function import CompiledFunction
from stratagem._src.execution.call_signature import static_key
from stratagem._src.execution.dataset_loops.captured_parts import Place
from stratagem._src.execution.dataset_loops.captures import Captures
from stratagem._src.execution.dataset_loops.loaded_names import changing_names
from stratagem._src.execution.dataset_loops.loop_step import LoopStep
from stratagem._src.runtime.protocols import StrategyProtocol

if TYPE_CHECKING:
    from stratagem._src.execution.function import Function

__all__ = ["LoopsOverDataset", "StepCache", "compiled_step", "looping"]

_MOST_STEPS = 100


class LoopsOverDataset(Exception):
    """A function that is being traced iterates over a distributed dataset."""


class StepCache:
    """The compiled form of each function that a loop gives to ``strategy.run``.

    A nested function is a new object each time its outer function is called. It counts as the same if
    its code is and it captures the same, apart from numbers and arrays, which it may capture others of.

    Args:
        make: Makes a ``stratagem.function``.
        loop: The function that loops.
    """

    def __init__(
        self, make: Callable[[Callable[..., Any]], Function], loop: Callable[..., Any]
    ) -> None:
        self._make = make
        self._loop = loop
        self._steps: dict[Any, tuple[LoopStep, list[weakref.ref[Any]]]] = {}
        self._effects: frozenset[Place] = frozenset()
        self._lock = threading.Lock()

    def run(
        self,
        strategy: StrategyProtocol,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Runs the compiled form of ``fn`` in every replica of ``strategy``."""
        captures = Captures(fn, self._changing_names, self._effects)
        known = self._steps.get(self._key(strategy, captures))
        step = self._add(strategy, captures, LoopStep(self._make)) if known is None else known[0]
        result, traced = step.run(strategy, captures, args, kwargs)
        if traced:
            self._note_effects(strategy, captures, step)
        return result

    def _note_effects(self, strategy: StrategyProtocol, captures: Captures, step: LoopStep) -> None:
        """Overlooks from now on what the step itself has changed while it was traced."""
        changed = captures.changed_places()
        if not changed <= self._effects:
            self._effects |= changed
            seen = Captures(captures.fn, self._changing_names, self._effects)
            if len(seen.values) == len(captures.values):
                self._add(strategy, seen, step)

    def _key(self, strategy: StrategyProtocol, captures: Captures) -> Any:
        return static_key(strategy, captures.needs), captures.key

    @functools.cached_property
    def _changing_names(self) -> frozenset[str]:
        code = getattr(inspect.unwrap(self._loop), "__code__", None)
        return frozenset() if code is None else changing_names(code)

    def _add(self, strategy: StrategyProtocol, captures: Captures, step: LoopStep) -> LoopStep:
        steps, key = self._steps, self._key(strategy, captures)
        watches = [
            weakref.ref(needed, lambda _: steps.pop(key, None))
            for needed in (reference() for reference in captures.needs)
            if needed is not None
        ]
        with self._lock:
            known = steps.setdefault(key, (step, watches))[0]
            if len(steps) > _MOST_STEPS:
                steps.pop(next(iter(steps)), None)
        return known

    def steps(self) -> list[Function]:
        """Returns every compiled form."""
        # A step may be known by several keys.
        return list(dict.fromkeys(step.function for step, _ in list(self._steps.values())))


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


def compiled_step(fn: Callable[..., Any]) -> StepCache | None:
    """Returns what runs ``fn`` compiled inside a loop; ``None`` elsewhere, or if it is compiled."""
    if not _active.caches or isinstance(fn, CompiledFunction):
        return None
    return _active.caches[-1]
