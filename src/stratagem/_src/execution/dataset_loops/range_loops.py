"""``for _ in tf.range(n)`` in a compiled function: a loop of compiled steps instead of an unrolled program.

While a function is traced, iteration over an array of ``tf.range`` yields its elements one by one. If the
first iteration calls ``strategy.run``, or another compiled function, the trace stops before the second: the
function then runs as a Python loop around compiled steps, as a loop over a dataset does. A loop whose size
is traced is tried in the same way, with a tracer as its element.

The first iteration also shows that the body does not look at values that differ between iterations. Such a
body is noted: its steps are not traced in every iteration of the Python loop.
"""

from __future__ import annotations

import functools
import logging
import sys
import types
from collections.abc import Iterator
from typing import Any, NoReturn

import jax.numpy as jnp

from stratagem._src.core.errors import TracedValueError
from stratagem._src.core.types import Tensor
from stratagem._src.execution.dataset_loops.loop_body import LoopBody, body_of_loop_over_call
from stratagem._src.execution.dataset_loops.step_cache import running_loop
from stratagem._src.execution.function_frame import FunctionFrame
from stratagem._src.jax_compat.iterated_tracer import iterated_by
from stratagem._src.jax_compat.tracing import is_tracer
from stratagem._src.values.array_operators import ArrayOperators
from stratagem._src.variables import frames

__all__ = ["TracedRange", "looped_over", "traced_range"]

_MAX_UNROLLED = 32
_logger = logging.getLogger("stratagem")


def looped_over(numbers: Tensor) -> Any:
    """Returns an array of ``tf.range`` such that loops of steps over it are not unrolled."""
    frame = frames.current_frame()
    if frame is None:
        return numbers if is_tracer(numbers) else running_loop(numbers, _frame_of_program())
    if not isinstance(frame, FunctionFrame) or not is_tracer(numbers):
        return numbers
    body = body_of_loop_over_call(_frame_of_program())
    return iterated_by(functools.partial(_elements, frame, body, numbers.shape[0]), numbers)


def _frame_of_program() -> types.FrameType:
    """Returns the frame that calls this library."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("stratagem."):
        frame = frame.f_back
    return frame


def _elements(
    frame: FunctionFrame, body: LoopBody | None, length: int, elements: Iterator[Any]
) -> Iterator[Any]:
    if frame is not frames.current_frame():
        yield from elements
        return
    before = frame.num_steps
    for position, element in enumerate(elements):
        if position == 1:
            if frame.num_steps > before:
                if frame.created:
                    # End the loop: the new variables get their values when this trace ends, and the
                    # function is traced once more.
                    return
                frame.refuse_to_unroll(body, traced=True)
            if length > _MAX_UNROLLED:
                _logger.warning(
                    "A loop over tf.range in a stratagem.function is unrolled: its program has the body %d "
                    "times. Make the body a separate stratagem.function, which is compiled once, or use "
                    "tf.while_loop.",
                    length,
                )
        yield element


def traced_range() -> TracedRange | None:
    """Returns a stand-in for a ``tf.range`` of traced size; ``None`` outside of a compiled function."""
    frame = frames.current_frame()
    if not isinstance(frame, FunctionFrame):
        return None
    return TracedRange(frame, body_of_loop_over_call(_frame_of_program()))


class TracedRange(ArrayOperators):
    """A ``tf.range`` in a compiled function whose size is known only at run time; it supports only loops.

    Args:
        frame: The frame of the function.
        body: The body of the loop over it.
    """

    def __init__(self, frame: FunctionFrame, body: LoopBody | None) -> None:
        self._frame = frame
        self._body = body

    def __iter__(self) -> Iterator[Any]:
        frame, body = self._frame, self._body
        if body is None or not body.assigns_only_locals or frame is not frames.current_frame():
            frame.refuse_to_unroll(body, traced=False)
        # Errors of this iteration do not matter: those that are the program's own come again in Python.
        frame.tries_loop = True
        yield jnp.arange(1)[0]
        frame.tries_loop = False
        if not frame.created:  # else trace once more, when the variables have their values
            frame.refuse_to_unroll(body, traced=True)

    def _value(self) -> NoReturn:
        raise TracedValueError(
            "start, limit and delta of tf.range must be known while a function is traced, unless the "
            "result is looped over: XLA compiles for fixed shapes. Sizes from tf.shape(x) and x.shape are "
            "known; pass others as Python numbers."
        )
