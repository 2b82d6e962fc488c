"""``RangeLoop``: a running loop over ``tf.range``, and the steps in it that need no further trace.

TensorFlow traces the body of such a loop once: Python code sees the values of that moment, and what differs
between iterations is a tensor. Here Python runs the body, and a step is traced in the first two iterations.
If both traces compute the same, from the same captured objects, the later iterations run its program
without a trace. That is right because nothing that differs between iterations can be hidden in the trace:

- Arguments are inputs of the program, or compared if they are not arrays. Variables are inputs.
- An array that the step captures and that the body makes is another object in the second trace.
- A value of an array that Python looked at (``if``, ``float(x)``) is excluded by the trace of the whole
  function: its first iteration had tracers for all of them. A loop without such a trace is no such loop.
- What AutoGraph would carry from one iteration to the next, as the body assigns it, is excluded by looking
  at the body's code.

What remains are Python objects that functions called by the body change. TensorFlow's trace does not see
later changes of those either.
"""

from __future__ import annotations

import collections
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from stratagem._src.core.types import CacheKey, Tensor
from stratagem._src.execution.call_signature import CallInputs
from stratagem._src.execution.callback_slots import CallbackSlots
from stratagem._src.execution.dataset_loops.loop_body import LoopBody
from stratagem._src.execution.function_frame import code_of
from stratagem._src.execution.program import Program
from stratagem._src.execution.static_key import IdentityKey, static_key

__all__ = ["RangeLoop", "StepTrace"]


class StepTrace(NamedTuple):
    """What one trace of a step gave.

    Attributes:
        key: The key of its program.
        captured: The arrays and numbers that it captured.
        static: The static leaves of its result.
        callbacks: The Python functions that it calls while it runs.
        slots: Where the program looks for them.
        program: The program, with these arrays and results.
    """

    key: CacheKey
    captured: list[Any]
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

    def computes_as(self, other: StepTrace) -> bool:
        """Returns whether another trace computes the same, from the same objects."""
        if self.callbacks or self.key != other.key:
            # Callbacks are new functions in each trace, and what they read is unknown.
            return False
        # Equal keys: there are as many of everything.
        static = zip(self.static, other.static, strict=True)
        return all(static_key(one, []) == static_key(two, []) for one, two in static) and all(
            map(_is_same, self.captured, other.captured)
        )


def _is_same(one: Any, two: Any) -> bool:
    # An array of JAX is compared by identity: an equal one may be what the body has just computed. Numbers
    # and arrays of NumPy are Python values.
    if one is two or isinstance(one, jax.Array) or isinstance(two, jax.Array):
        return one is two
    one, two = np.asarray(one), np.asarray(two)
    return (one.dtype, one.shape) == (two.dtype, two.shape) and one.tobytes() == two.tobytes()


class _Step:
    """A step that the body calls at one place, with one signature.

    Attributes:
        first: The trace of the first iteration, until there is another.
        repeated: The second trace if it computes the same: it serves all later iterations.
        num_traces: How many traces there were.
    """

    def __init__(self) -> None:
        self.first: StepTrace | None = None
        self.repeated: StepTrace | None = None
        self.num_traces = 0

    def note(self, traced: StepTrace) -> None:
        """Notes a trace."""
        self.num_traces += 1
        if self.num_traces == 1:
            self.first = traced
        elif self.first is not None:
            self.repeated = traced if traced.computes_as(self.first) else None
            self.first = None


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
        self._steps: dict[CacheKey, _Step] = {}
        self._num_calls: collections.Counter[int] = collections.Counter()

    def __iter__(self) -> Iterator[Any]:
        self._active.append(self)
        try:
            for number in self._numbers:
                self._num_calls.clear()
                yield number
        finally:
            self._active.remove(self)

    def traced_step(
        self, fn: Callable[..., Any], place: CacheKey, trace: Callable[[], StepTrace]
    ) -> StepTrace:
        """Returns the trace to run for a call of a step.

        Args:
            fn: The function of the step.
            place: The key of its arguments, and of where it runs.
            trace: Traces it.
        """
        if not self._makes_this_call():
            return trace()
        # TensorFlow traces each call that the body makes: the first one from this line of the body, the
        # second one, and so on.
        position = self._frame.f_lasti
        self._num_calls[position] += 1
        key = (position, self._num_calls[position], place, IdentityKey(code_of(fn), None))
        step = self._steps.setdefault(key, _Step())
        if step.repeated is not None:
            return step.repeated
        traced = trace()
        step.note(traced)
        return traced

    def _makes_this_call(self) -> bool:
        """Returns whether the body of this loop makes the present call, directly or through functions."""
        frame: types.FrameType | None = sys._getframe(2)
        while frame is not None and frame is not self._frame:
            frame = frame.f_back
        return frame is not None and self._body.is_running_in(frame)
