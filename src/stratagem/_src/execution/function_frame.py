"""``FunctionFrame``: the state frame of a function while it is traced, and how its trace can end early."""

from __future__ import annotations

import collections
import functools
import inspect
import logging
import weakref
from collections.abc import Callable
from typing import Any

from stratagem._src.core.errors import ContextError, OutOfRangeError, VariableError
from stratagem._src.core.input_kinds import EndOfData
from stratagem._src.core.types import (
    ArrayLike,
    Dataset,
    ReplicaFunction,
)
from stratagem._src.execution.dataset_loops.loop_body import LoopBody
from stratagem._src.execution.draws import AnyIterator, Draw, RaggedElement, draw_element
from stratagem._src.execution.tracing_frame import TracingFrame
from stratagem._src.input.optional import MISSING
from stratagem._src.jax_compat.tracer_owner import stages_into
from stratagem._src.mesh.replica_group import ReplicaGroup
from stratagem._src.variables.variable import Variable

__all__ = ["FunctionFrame", "LoopsOverDataset", "UncaughtEndOfData", "code_of"]

_STEPS_TO_WARN = 3
_warned: weakref.WeakSet[Any] = weakref.WeakSet()
_logger = logging.getLogger("stratagem")


def code_of(fn: Any) -> Any:
    """Returns the code object of a function, method or callable object; its type if it has none."""
    fn = inspect.unwrap(fn)
    while isinstance(fn, functools.partial):
        fn = fn.func
    fn = getattr(fn, "__func__", fn)
    code = getattr(fn, "__code__", None)
    return code if code is not None else getattr(type(fn).__call__, "__code__", type(fn))


class LoopsOverDataset(Exception):
    """A traced function loops over a dataset or around steps: it must run as a Python loop instead.

    Args:
        bodies: The bodies of its loops over ``tf.range`` whose first iteration was traced, if those are the
            reason.
    """

    def __init__(self, bodies: frozenset[LoopBody] | None = None) -> None:
        super().__init__()
        self.bodies = bodies


class UncaughtEndOfData(OutOfRangeError):
    """A traced function did not catch the end of the data."""


class FunctionFrame(TracingFrame):
    """Frame of a traced ``function``.

    Args:
        may_create: Whether variables may be created, as on a function's first call.
        tries_loop: See the attribute.

    Attributes:
        groups: The replica groups whose devices were used.
        draws: The elements that were drawn.
        num_steps: Number of traced calls of ``strategy.run`` and of compiled functions.
        stopped_by: The exception that ended the trace because this call cannot be compiled. It applies even
            if the function caught it: the program would repeat in every call what the function did then.
        ended_by: The exception that was raised at the end of the data. A function that catches it gets a
            program for calls at the end.
        tries_loop: Whether this call runs as a Python loop anyway: it is traced for what its loops look at,
            and errors do not matter.
    """

    def __init__(self, *, may_create: bool, tries_loop: bool = False) -> None:
        super().__init__()
        self._may_create = may_create
        self.groups: list[ReplicaGroup] = []
        self.draws: list[Draw] = []
        self.num_steps = 0
        self._steps: collections.Counter[Any] = collections.Counter()
        self.stopped_by: Exception | None = None
        self.ended_by: EndOfData | None = None
        self.tries_loop = tries_loop

    def use_group(self, group: ReplicaGroup) -> None:
        """Notes that the program runs on the devices of ``group``."""
        self.groups.append(group)

    def draw(self, iterator: AnyIterator, *, optional: bool = False) -> Any:
        """Draws an element, which becomes an input of the program.

        Raises:
            EndOfData: At the end, unless ``optional``.
            ContextError: Inside a JAX transformation, such as the body of ``lax.scan``.
        """
        if not stages_into(self._trace):
            raise ContextError(
                "next(iterator) is called inside a JAX transformation (lax.scan, lax.cond, jax.jit, "
                "jax.checkpoint, ...), which calls the function once for all of its runs. Call it "
                "outside and pass the element."
            )
        try:
            drawn = draw_element(iterator, self.draws)
            element = drawn.traced(len(self.draws) - 1, self._trace)
        except RaggedElement as error:
            self.stopped_by = error
            raise
        if element is MISSING and not optional:
            self.ended_by = EndOfData()
            raise self.ended_by
        return element

    def unless_stopped(self, call: Callable[[], Any]) -> Any:
        """Returns ``call()``, or raises the exception that stopped the trace, even if ``call`` caught it.

        Raises:
            UncaughtEndOfData: If it did not catch the end of the data.
        """
        try:
            result = call()
        except Exception as error:
            if isinstance(self.stopped_by, LoopsOverDataset):
                raise self.stopped_by from error
            if self.tries_loop and all(variable.initialized for variable in self.created):
                raise LoopsOverDataset(frozenset()) from error
            # A generator (of JAX, for example) turns a StopIteration that leaves it into a RuntimeError.
            if self.ended_by is not None and self.ended_by in (error, error.__cause__):
                raise UncaughtEndOfData("End of the dataset.") from None
            if self.stopped_by is None or self.stopped_by is error:
                raise
            raise self.stopped_by from error
        if self.stopped_by is not None:
            raise self.stopped_by
        if self.tries_loop:
            raise LoopsOverDataset(frozenset())
        return result

    def note_step(self, fn: ReplicaFunction) -> None:
        """Counts a step, and warns once if a Python loop over it is unrolled."""
        self.num_steps += 1
        code = code_of(fn)
        self._steps[code] += 1
        if self._steps[code] == _STEPS_TO_WARN and code not in _warned:
            _warned.add(code)
            _logger.warning(
                "A stratagem.function calls %s for the third time while it is traced. A loop over Python's "
                "range, or a while loop, is unrolled: the program contains the body once per iteration, "
                "and takes longer to compile. Loop over tf.range or a dataset to compile it once.",
                getattr(fn, "__qualname__", repr(fn)),
            )

    def refuse_to_loop(self, dataset: Dataset) -> None:
        """Raises ``LoopsOverDataset``: the number of iterations is unknown while tracing."""
        self.stopped_by = LoopsOverDataset()
        raise self.stopped_by

    def refuse_to_unroll(self, body: LoopBody | None, *, traced: bool) -> None:
        """Raises ``LoopsOverDataset`` for a loop over ``tf.range``.

        Args:
            body: The body of the loop, if it was found.
            traced: Whether its first iteration was traced.
        """
        bodies = frozenset([body]) if traced and body is not None else frozenset()
        self.stopped_by = LoopsOverDataset(bodies)
        raise self.stopped_by

    def create(self, variable: Variable, initial_value: ArrayLike) -> None:
        """Notes a new variable.

        Raises:
            VariableError: After the first call.
        """
        if not self._may_create:
            raise VariableError(
                "A function may create variables on its first call only, but "
                f"{variable.name!r} is created again. Create it outside of the function, or only if it "
                "does not exist yet."
            )
        super().create(variable, initial_value)
