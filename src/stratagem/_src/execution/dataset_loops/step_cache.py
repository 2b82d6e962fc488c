"""Functions that loop over a distributed dataset: a Python loop around compiled steps."""

from __future__ import annotations

import collections
import contextlib
import functools
import inspect
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from stratagem._src.core import jax_settings
from stratagem._src.current_strategy.protocols import StrategyProtocol
from stratagem._src.execution.bound_function import CompiledFunction
from stratagem._src.execution.call_signature import CallInputs, static_key
from stratagem._src.execution.dataset_loops.loaded_names import changing_names
from stratagem._src.execution.dataset_loops.step_snapshot import StepSnapshot
from stratagem._src.execution.number_lifting import NumberLifting, lifting_numbers
from stratagem._src.execution.program import Program
from stratagem._src.execution.trace import trace_program
from stratagem._src.execution.variable_exchange import VariablesGone
from stratagem._src.mesh.backend_lifetime import backend_lifetime

__all__ = ["StepCache", "compiled_step", "looping"]

_MOST_SNAPSHOTS = 16
_MOST_PROGRAMS = 64


class StepCache:
    """The compiled forms of the functions that a loop gives to ``strategy.run``.

    A step that captures the same as before runs the same program. Otherwise it is traced, so that
    Python code sees what it captures now; numbers and arrays that have changed are inputs of the
    program, so that XLA has nothing to compile again.

    Args:
        loop: The function that loops.
    """

    def __init__(self, loop: Callable[..., Any]) -> None:
        self._loop = loop
        self._by_snapshot: collections.OrderedDict[Any, tuple[Program, list[Any]]]
        self._by_snapshot = collections.OrderedDict()
        self._by_structure: collections.OrderedDict[Any, Program] = collections.OrderedDict()
        self._traced: dict[Any, NumberLifting] = {}
        self._lock = threading.RLock()
        self._made_for = backend_lifetime()
        self.num_programs = 0

    def run(
        self,
        strategy: StrategyProtocol,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Runs the compiled form of ``fn`` in every replica of ``strategy``."""
        self._forget_gone_devices()
        inputs = CallInputs((args, kwargs), {})
        if inputs.ragged:
            with looping(None):
                return strategy.run(fn, args, kwargs)
        snapshot = StepSnapshot(fn, self._changing_names)
        needs = [*snapshot.needs, *inputs.needs]
        place = (static_key(strategy, needs), inputs.key, jax_settings.current_settings())
        if snapshot.key is None:
            return self._make(strategy, fn, snapshot, inputs, place).run(inputs)
        key = (snapshot.key, place)
        with contextlib.suppress(KeyError, VariablesGone):
            return self._by_snapshot[key][0].run(inputs)
        program = self._make(strategy, fn, snapshot, inputs, place)
        # What the step itself changes while it is traced is a part of the next snapshot, not of this.
        self._remember(key, program, [*needs, *program.depends_on()])
        return program.run(inputs)

    def _forget_gone_devices(self) -> None:
        with self._lock:
            if self._made_for() is None:
                self._made_for = backend_lifetime()
                self._by_snapshot.clear()
                self._by_structure.clear()

    @functools.cached_property
    def _changing_names(self) -> frozenset[str]:
        code = getattr(inspect.unwrap(self._loop), "__code__", None)
        return frozenset() if code is None else changing_names(code)

    def _make(
        self,
        strategy: StrategyProtocol,
        fn: Callable[..., Any],
        snapshot: StepSnapshot,
        inputs: CallInputs,
        place: Any,
    ) -> Program:
        """Traces a step; returns its program, with what XLA has compiled for one like it."""
        with self._lock:
            which = (_code_of(fn), place)
            before = self._traced.get(which)
            positions = None if before is None else frozenset(before.lifted)
            lifting = NumberLifting(positions, snapshot.suspects)
            program = self._trace(strategy, fn, inputs, lifting, may_create=before is None)
            if before is not None and (changed := _changed(before, lifting) - before.lifted):
                lifting = NumberLifting(before.lifted | changed)
                program = self._trace(strategy, fn, inputs, lifting, may_create=False)
            self._traced[which] = lifting
            if len(self._traced) > _MOST_PROGRAMS:
                self._traced.pop(next(iter(self._traced)))
            known = self._by_structure.get(lifting.structure)
            if known is not None:
                program.use_compiled_form_of(known)
            else:
                self.num_programs += 1
                if lifting.structure is not None:
                    self._by_structure[lifting.structure] = program
                    if len(self._by_structure) > _MOST_PROGRAMS:
                        self._by_structure.popitem(last=False)
            return program

    def _trace(
        self,
        strategy: StrategyProtocol,
        fn: Callable[..., Any],
        inputs: CallInputs,
        lifting: NumberLifting,
        *,
        may_create: bool,
    ) -> Program:
        def run_in_replicas(args: Any, kwargs: Any) -> Any:
            return strategy.run(fn, args, kwargs)

        functools.update_wrapper(run_in_replicas, fn)
        with looping(None):
            program = None
            for creates in (may_create, False):
                lifting.restart()
                with lifting_numbers(lifting):
                    program = trace_program(run_in_replicas, inputs, may_create=creates)
                if program is not None:
                    return program
        raise AssertionError("the second trace creates nothing")

    def _remember(self, key: Any, program: Program, needs: list[weakref.ref[Any]]) -> None:
        snapshots = self._by_snapshot
        watches = [
            weakref.ref(needed, lambda _: snapshots.pop(key, None))
            for needed in (reference() for reference in needs)
            if needed is not None
        ]
        with self._lock:
            snapshots[key] = (program, watches)
            if len(snapshots) > _MOST_SNAPSHOTS:
                snapshots.popitem(last=False)


def _changed(before: NumberLifting, now: NumberLifting) -> set[int]:
    """Returns which numbers are others than before, if the two traces correspond at all."""
    if [kind for kind, _ in before.numbers] != [kind for kind, _ in now.numbers]:
        return set()
    pairs = zip(before.numbers, now.numbers, strict=True)
    return {position for position, (old, new) in enumerate(pairs) if old != new}


def _code_of(fn: Any) -> Any:
    while isinstance(fn, functools.partial):
        fn = fn.func
    fn = getattr(fn, "__func__", fn)
    code = getattr(fn, "__code__", None)
    return code if code is not None else getattr(type(fn).__call__, "__code__", type(fn))


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
