"""``StepCache``: the compiled steps of a function that loops over a dataset.

Such a function runs as a Python loop. Every iteration traces the step, like a function that is called for
the first time: its Python code sees all objects as they are in this iteration. The trace is then compared
with earlier traces. If an earlier trace computes the same, its program runs, with the arrays, numbers,
callbacks and static results of the new trace. So the cache need not know what a step reads, and XLA
compiles once as long as only values change. Loops over ``tf.range`` need fewer traces: see ``RangeLoop``.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import logging
import threading
import time
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from stratagem._src.core.types import CacheKey, PyTree, Tensor
from stratagem._src.current_strategy.protocols import StrategyProtocol
from stratagem._src.execution.bound_function import CompiledFunction
from stratagem._src.execution.buffer_donation import VariablesGone
from stratagem._src.execution.build import build_program
from stratagem._src.execution.call_signature import CallInputs
from stratagem._src.execution.callback_slots import CallbackSlots, callbacks_of
from stratagem._src.execution.dataset_loops.loop_body import LoopBody, body_of_loop_over_call
from stratagem._src.execution.dataset_loops.repeated_steps import RangeLoop, StepTrace
from stratagem._src.execution.function_frame import code_of
from stratagem._src.execution.program import Program
from stratagem._src.execution.static_key import static_key
from stratagem._src.execution.trace import trace_function
from stratagem._src.execution.trace_key import own_results, trace_key
from stratagem._src.execution.traced_function import TracedFunction
from stratagem._src.jax_compat import jax_settings
from stratagem._src.jaxpr.constant_hoisting import ConstantHoisting, hoisting_constants
from stratagem._src.mesh.backend_lifetime import backend_lifetime

__all__ = ["StepCache", "compiled_step", "looping", "running_loop"]

_MAX_PROGRAMS = 64
_log = logging.getLogger("stratagem")


class _Entry(NamedTuple):
    """A program, the slots of its callbacks, and weak references whose callbacks evict it."""

    program: Program
    slots: CallbackSlots
    watches: list[weakref.ref[Any]]


class StepCache:
    """The programs of the functions that a loop passes to ``strategy.run``.

    Attributes:
        num_programs: Number of programs that have been compiled.
    """

    def __init__(self) -> None:
        self._entries: collections.OrderedDict[Any, _Entry] = collections.OrderedDict()
        self._hoistings: collections.OrderedDict[Any, ConstantHoisting] = collections.OrderedDict()
        self._lock = threading.RLock()
        self._cost = _TraceCost()
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
        inputs = CallInputs((args, kwargs), {})
        if inputs.ragged:
            with looping(None):
                return strategy.run(fn, args, kwargs)
        loop = _active.innermost_range_loop()
        with self._lock:
            self._clear_if_backend_changed()
            needs = list(inputs.needs)
            settings = jax_settings.current_settings()
            place = (static_key(strategy, needs), inputs.key, settings, self._made_for)

            def trace() -> StepTrace:
                begun, num_programs = time.perf_counter(), self.num_programs
                traced = self._trace(strategy, fn, inputs, place, needs)
                if self.num_programs == num_programs:
                    self._cost.note(fn, begun)
                return traced

            step = trace() if loop is None else loop.traced_step(fn, place, trace)
        try:
            return step.run(inputs)
        except VariablesGone:
            if loop is None:
                raise
            # The trace is from an earlier iteration, and a variable has been replaced since.
            with self._lock:
                step = trace()
            return step.run(inputs)

    def _clear_if_backend_changed(self) -> None:
        if self._made_for() is None:
            self._made_for = backend_lifetime()
            self._entries.clear()

    def _trace(
        self,
        strategy: StrategyProtocol,
        fn: Callable[..., Any],
        inputs: CallInputs,
        place: CacheKey,
        needs: list[weakref.ref[Any]],
    ) -> StepTrace:
        """Traces a step, and compiles a program if no earlier trace computes the same."""
        # Which constants change between iterations is remembered per code object of the step. A wrong guess
        # only costs a compilation.
        which = (code_of(fn), place)
        before = self._hoistings.get(which)
        hoisting = ConstantHoisting(before)
        traced = _trace(strategy, fn, inputs, hoisting, may_create=before is None)
        key = (place, trace_key(traced))
        _remember(self._hoistings, which, hoisting)
        entry = self._entries.get(key)
        if entry is None:
            entry = self._build(key, traced, needs)
        _remember(self._entries, key, entry)
        static = [leaf.static for leaf in own_results(traced) if leaf.is_static]
        program = entry.program.for_another_trace(traced.placed_consts(), static)
        callbacks = callbacks_of(traced.jaxpr)
        return StepTrace(
            key, hoisting.captured(traced.consts), static, callbacks, entry.slots, program
        )

    def _build(
        self, key: CacheKey, traced: TracedFunction, needs: list[weakref.ref[Any]]
    ) -> _Entry:
        slots = CallbackSlots()
        program = build_program(traced.replace_jaxpr(slots.put_into(traced.jaxpr)))
        slots.clear()
        self.num_programs += 1
        entries = self._entries
        watches = [
            weakref.ref(needed, lambda _: entries.pop(key, None))
            for needed in (reference() for reference in [*needs, *program.depends_on()])
            if needed is not None
        ]
        # Do not keep alive what this trace captured and returned.
        num_static = sum(leaf.is_static for leaf in own_results(traced))
        program = program.for_another_trace([None] * len(traced.consts), [None] * num_static)
        return _Entry(program, slots, watches)


class _TraceCost:
    """Warns once if a loop spends much of its time on tracing."""

    _NUM_STEPS = 20
    _MIN_MEAN_SECONDS = 2e-3
    _MIN_FRACTION = 0.25

    def __init__(self) -> None:
        self._count = 0
        self._seconds = 0.0
        self._started = 0.0

    def note(self, fn: Callable[..., Any], begun: float) -> None:
        """Notes a step whose trace began at ``begun``, has just ended, and needed no compilation."""
        if self._count == self._NUM_STEPS:
            return
        now = time.perf_counter()
        if self._count == 0:
            self._started = begun
        self._count += 1
        self._seconds += now - begun
        if self._count < self._NUM_STEPS:
            return
        mean, all_seconds = self._seconds / self._count, now - self._started
        if mean > self._MIN_MEAN_SECONDS and self._seconds > self._MIN_FRACTION * all_seconds:
            _log.warning(
                "A loop in an sg.function traces %s in every iteration, which takes %.0f ms "
                "of %.0f ms. Make it an sg.function to trace it once; values that it captures are then "
                "those of the first trace.",
                getattr(fn, "__qualname__", repr(fn)),
                1e3 * mean,
                1e3 * all_seconds / self._count,
            )


def _trace(
    strategy: StrategyProtocol,
    fn: Callable[..., Any],
    inputs: CallInputs,
    hoisting: ConstantHoisting,
    *,
    may_create: bool,
) -> TracedFunction:
    def run_in_replicas(args: PyTree, kwargs: PyTree) -> Any:
        return strategy.run(fn, args, kwargs)

    functools.update_wrapper(run_in_replicas, fn)
    with looping(None):
        for creates in (may_create, False):
            hoisting.restart()
            with hoisting_constants(hoisting):
                traced = trace_function(run_in_replicas, inputs, may_create=creates)
            if traced is not None:
                return traced
    raise AssertionError("the second trace creates nothing")


def _remember(known: collections.OrderedDict[Any, Any], key: CacheKey, value: Any) -> None:
    """Adds an entry, or makes it the latest, and evicts the oldest one if there are too many."""
    known[key] = value
    known.move_to_end(key)
    if len(known) > _MAX_PROGRAMS:
        known.popitem(last=False)


class _Active(threading.local):
    """The functions of this thread that run as Python loops, outermost first; others as ``None``."""

    def __init__(self) -> None:
        self.functions: list[_LoopingFunction | None] = []

    def innermost_range_loop(self) -> RangeLoop | None:
        """Returns the innermost loop over ``tf.range`` of the innermost function."""
        function = self.functions[-1] if self.functions else None
        return function.range_loops[-1] if function is not None and function.range_loops else None


class _LoopingFunction(NamedTuple):
    """A function that runs as a Python loop.

    Attributes:
        steps: The programs of its steps.
        traced_bodies: The bodies of loops over ``tf.range`` that were traced, with the function.
        range_loops: Its loops over ``tf.range`` that are running now.
    """

    steps: StepCache
    traced_bodies: frozenset[LoopBody]
    range_loops: list[RangeLoop]


_active = _Active()


@contextlib.contextmanager
def looping(
    cache: StepCache | None, traced_bodies: frozenset[LoopBody] = frozenset()
) -> Iterator[None]:
    """Makes ``strategy.run`` compile its function inside the block; with ``None``, it does not."""
    function = None if cache is None else _LoopingFunction(cache, traced_bodies, [])
    _active.functions.append(function)
    try:
        yield
    finally:
        _active.functions.pop()


def running_loop(numbers: Tensor, frame: types.FrameType) -> Any:
    """Returns ``numbers``, as a ``RangeLoop`` if ``frame`` loops over them and its body was traced."""
    function = _active.functions[-1] if _active.functions else None
    if function is None or not function.traced_bodies:
        return numbers
    body = body_of_loop_over_call(frame)
    if body is None or not body.assigns_only_locals or body not in function.traced_bodies:
        return numbers
    return RangeLoop(numbers, frame, body, function.range_loops)


def compiled_step(fn: Callable[..., Any]) -> StepCache | None:
    """Returns the cache that runs ``fn`` in a loop; ``None`` outside of loops, or if ``fn`` is compiled."""
    function = _active.functions[-1] if _active.functions else None
    return None if function is None or isinstance(fn, CompiledFunction) else function.steps
