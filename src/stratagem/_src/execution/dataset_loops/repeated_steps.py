"""``RangeLoop``: a loop over ``tf.range`` in which each step is traced until two traces agree.

In TensorFlow the body of such a loop is traced once. Here Python runs the body, so a step may compute
something else in each iteration. The loop compares what it can see before each call: the call site, the
arguments, the function's code and the variables that it captures. What a function reads in other places
nothing can know before it runs. So a step is traced until two traces in a row compute the same, from the
same captured arrays: mostly in the first two iterations. Later iterations run the program without a trace,
up to the last one: there a trace must compute the same once more, or the loop fails.

A loop whose body assigns attributes, items or global variables traces its steps in every iteration: they
may be there to be read by the steps.
"""

from __future__ import annotations

import collections
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.core.errors import ContextError
from stratagem._src.core.types import CacheKey, Tensor
from stratagem._src.execution.call_signature import CallInputs
from stratagem._src.execution.callback_slots import CallbackSlots
from stratagem._src.execution.dataset_loops.captured_key import captured_key
from stratagem._src.execution.dataset_loops.loop_body import LoopBody
from stratagem._src.execution.program import Program
from stratagem._src.execution.static_key import static_key

__all__ = ["RangeLoop", "StepTrace"]

_MAX_COMPARED_BYTES = 1 << 16


class StepTrace(NamedTuple):
    """What one trace of a step gave.

    Attributes:
        key: The key of its program.
        consts: The captured arrays.
        static: The static leaves of its result.
        callbacks: The Python functions that it calls while it runs.
        slots: Where the program looks for them.
        program: The program, with these arrays and results.
    """

    key: CacheKey
    consts: list[Any]
    static: list[Any]
    callbacks: list[Callable[..., Any]]
    slots: CallbackSlots
    program: Program

    def run(self, inputs: CallInputs) -> Any:
        """Runs the program with the arguments of a call."""
        if not self.callbacks:
            return self.program.run(inputs)
        # Runs wait for a program with callbacks. Until it has ended, the slots hold the callbacks of this
        # trace.
        with self.slots.lock:
            self.slots.fill(self.callbacks)
            try:
                return self.program.run(inputs)
            finally:
                self.slots.clear()

    def computes(self) -> Any:
        """Returns a key that is equal for traces that compute the same."""
        if self.callbacks:
            # They are new functions in each trace, and what they read is unknown.
            return object()
        static = [static_key(leaf, []) for leaf in self.static]
        return self.key, tuple(map(_content, self.consts)), tuple(static)


def _content(array: Any) -> Any:
    """Returns what to compare of a captured array: its bytes if it is small, else its identity."""
    if array is None:
        return None
    if array.nbytes > _MAX_COMPARED_BYTES or not getattr(array, "is_fully_addressable", True):
        return static_key(array, []) if isinstance(array, jax.Array) else object()
    kind = array.dtype, array.shape, getattr(array, "weak_type", False)
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    return *kind, np.asarray(array).tobytes()


class _Step:
    """A step that the loop calls at one place with one signature.

    Attributes:
        computes: What its latest trace computes.
        repeated: The latest trace if the one before computes the same: it serves the next iterations.
    """

    def __init__(self) -> None:
        self.computes: Any = None
        self.repeated: StepTrace | None = None

    def note(self, traced: StepTrace) -> None:
        """Notes a trace."""
        before, self.computes = self.computes, traced.computes()
        self.repeated = traced if self.computes == before else None


class RangeLoop:
    """The elements of a range, and the steps that the body of a loop over them calls.

    Args:
        numbers: The elements.
        frame: The frame of the function that loops.
        body: The body of the loop.
        active: The loops that this thread runs; this loop is among them while it runs.
    """

    def __init__(
        self, numbers: Tensor, frame: types.FrameType, body: LoopBody, active: list[RangeLoop]
    ) -> None:
        self._numbers = numbers
        self._frame = frame
        self._body = body
        self._active = active
        self._num_left = len(numbers)
        self._steps: dict[CacheKey, _Step] = {}
        self._num_calls: collections.Counter[int] = collections.Counter()

    def __iter__(self) -> Iterator[Any]:
        self._active.append(self)
        try:
            for number in self._numbers:
                self._num_left -= 1
                self._num_calls.clear()
                yield number
        finally:
            self._active.remove(self)

    def traced_step(
        self, fn: Callable[..., Any], place: CacheKey, trace: Callable[[], StepTrace]
    ) -> StepTrace:
        """Returns the trace to run for a call of a step; an earlier one if that is known to be the same.

        Args:
            fn: The function of the step.
            place: The key of its arguments, and of where it runs.
            trace: Traces it.

        Raises:
            ContextError: If the last iteration computes something else than those without a trace.
        """
        if not self._body.assigns_only_locals or not self._makes_this_call():
            return trace()
        position = self._frame.f_lasti
        self._num_calls[position] += 1
        key = (position, self._num_calls[position], place, captured_key(fn))
        step = self._steps.setdefault(key, _Step())
        if step.repeated is not None and self._num_left > 0:
            return step.repeated
        traced = trace()
        was_repeated = step.repeated is not None
        step.note(traced)
        if was_repeated and step.repeated is None:
            raise _changed(fn)
        return traced

    def _makes_this_call(self) -> bool:
        """Returns whether the body of this loop makes the present call, directly or through functions."""
        frame: types.FrameType | None = sys._getframe(2)
        while frame is not None and frame is not self._frame:
            frame = frame.f_back
        return frame is not None and self._body.is_running_in(frame)


def _changed(fn: Callable[..., Any]) -> ContextError:
    name = getattr(fn, "__qualname__", repr(fn))
    return ContextError(
        "A step in a loop over tf.range must read the same Python values in all iterations, because not "
        f"every iteration traces it; but {name} computes something else in the last iteration than in the "
        "first ones. The variables are as they were before the loop. Keep what changes in a tf.Variable, "
        "pass it as an argument, or assign it in the body of the loop itself."
    )
