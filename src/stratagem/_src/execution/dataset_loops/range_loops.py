"""``for _ in tf.range(n)`` in a compiled function: a loop of compiled steps instead of an unrolled program.

While a function is traced, iteration over an array of ``tf.range`` yields its elements one by one. If the
first iteration calls ``strategy.run``, or another compiled function, the trace stops before the second: the
function then runs as a Python loop around compiled steps, as a loop over a dataset does.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator
from typing import Any, NoReturn

from stratagem._src.core.errors import TracedValueError
from stratagem._src.core.types import Tensor
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
    if not isinstance(frame, FunctionFrame) or not is_tracer(numbers):
        return numbers
    return iterated_by(functools.partial(_elements, frame, numbers.shape[0]), numbers)


def _elements(frame: FunctionFrame, length: int, elements: Iterator[Any]) -> Iterator[Any]:
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
                frame.refuse_to_loop(None)
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
    return TracedRange(frame) if isinstance(frame, FunctionFrame) else None


class TracedRange(ArrayOperators):
    """A ``tf.range`` in a compiled function whose size is known only at run time; it supports only loops.

    Args:
        frame: The frame of the function.
    """

    def __init__(self, frame: FunctionFrame) -> None:
        self._frame = frame

    def __iter__(self) -> Iterator[Any]:
        self._frame.refuse_to_loop(None)
        raise AssertionError("a traced function does not loop")

    def _value(self) -> NoReturn:
        raise TracedValueError(
            "start, limit and delta of tf.range must be known while a function is traced, unless the "
            "result is looped over: XLA compiles for fixed shapes. Sizes from tf.shape(x) and x.shape are "
            "known; pass others as Python numbers."
        )
