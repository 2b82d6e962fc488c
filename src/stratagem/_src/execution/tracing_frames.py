"""State frames: variables' values while a function, a replica or a gradient is traced."""

from __future__ import annotations

import collections
import contextlib
import functools
import inspect
import logging
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.collectives.all_gather import gather_spmd
from stratagem._src.core.errors import ContextError, OutOfRangeError, VariableError
from stratagem._src.data.iterator import EndOfData
from stratagem._src.execution.dataset_loops.loops_over_dataset import LoopsOverDataset
from stratagem._src.execution.draws import AnyIterator, Draw, RaggedElement, draw_element
from stratagem._src.execution.gradient_taps import GradientTaps
from stratagem._src.execution.remote.reads import read_all, read_rows
from stratagem._src.execution.remote.remote_access import RemoteAccess
from stratagem._src.execution.variable_reads import read_first
from stratagem._src.input.optional import MISSING
from stratagem._src.jax_compat.compile_time_eval import evaluate_now
from stratagem._src.jax_compat.tracer_owner import stages_into
from stratagem._src.jax_compat.tracing import active_trace, in_trace, is_tracer
from stratagem._src.mesh.replica_group import REPLICA_AXIS, ReplicaGroup
from stratagem._src.variables.access import StateFrame, records
from stratagem._src.variables.fully_sharded_variable import FullyShardedVariable
from stratagem._src.variables.remotely_held_variable import RemotelyHeldVariable
from stratagem._src.variables.updates import Update
from stratagem._src.variables.variable import Variable

_STEPS_TO_WARN = 3
_warned: weakref.WeakSet[Any] = weakref.WeakSet()
_logger = logging.getLogger("stratagem")

__all__ = [
    "EndNotCaught",
    "ForeignFrame",
    "FunctionFrame",
    "GradientFrame",
    "ReplicaFrame",
    "TracingFrame",
    "code_of",
]


def code_of(fn: Any) -> Any:
    """Returns the code of a function, a method or an object that can be called; else its type."""
    fn = inspect.unwrap(fn)
    while isinstance(fn, functools.partial):
        fn = fn.func
    fn = getattr(fn, "__func__", fn)
    code = getattr(fn, "__code__", None)
    return code if code is not None else getattr(type(fn).__call__, "__code__", type(fn))


class TracingFrame(StateFrame):
    """Values of variables while a program is traced: inputs of it from their first read on."""

    in_parts = True

    def __init__(self) -> None:
        super().__init__()
        self._trace: Any = None
        # Kept alive: identities of variables are keys here, and operations refer to them weakly.
        self._read: list[Variable] = []
        self.written: dict[int, Variable] = {}
        self.created: list[Variable] = []
        self._initial_values: list[Any] = []
        self.remote = RemoteAccess()
        self._values: dict[int, Any] = {}
        self._fetched_later: dict[tuple[int, int], Any] = {}

    def open(self) -> None:
        """Notes the trace that this frame belongs to; called once it is active."""
        super().open()
        self._trace = active_trace()

    def around(self) -> contextlib.AbstractContextManager[Any]:
        """Has what the block computes be part of this frame's own trace."""
        return in_trace(self._trace)

    def close(self) -> None:
        """Forgets the traced values, which are of no use once tracing has ended."""
        self._trace = None
        self._values = {}
        self._fetched_later = {}
        self._initial_values = []

    def read(self, variable: Variable) -> Any:
        """Returns the present traced value."""
        if isinstance(variable, RemotelyHeldVariable):
            return self.remote.current(variable, self._fetched(variable))
        return self._current(variable)

    def _current(self, variable: Variable) -> Any:
        if id(variable) not in self._values:
            self._read.append(variable)
            shape = variable.replica_shape if self.spmd else variable.program_shape
            self._values[id(variable)] = read_first(variable, shape, self._trace)
        return self._values[id(variable)]

    def _fetched(self, variable: RemotelyHeldVariable) -> Any:
        """Returns the whole value of a remote variable, as late as it must be fetched."""
        after = self.remote.updates_before_read(variable)
        if not after:
            return self._current(variable)
        key = (id(variable), after)
        if key not in self._fetched_later:
            self.check_fetchable(variable)
            self.use_group(variable.group)
            self._read.append(variable)
            self._fetched_later[key] = read_all(variable, after)
        return self._fetched_later[key]

    def rows(self, variable: RemotelyHeldVariable, indices: Any) -> Any:
        """Returns rows to be fetched before the program runs, with this trace's own updates."""
        self.use_group(variable.group)
        self._read.append(variable)
        after = self.remote.updates_before_read(variable)
        return self.remote.current_rows(
            variable, indices, lambda numbers: read_rows(variable, numbers, after)
        )

    def update_remotely(self, variable: RemotelyHeldVariable, update: Update, operand: Any) -> None:
        """Notes an update, to be sent when the program has run."""
        self.use_group(variable.group)
        self.remote.note(variable, update, operand)

    def write(self, variable: Variable, value: Any) -> None:
        """Sets the traced value."""
        self._values[id(variable)] = value
        self.written[id(variable)] = variable

    def written_values(self) -> list[Any]:
        """Returns the last value of each written variable."""
        return [self._values[key] for key in self.written]

    def initial_values(self) -> list[Any]:
        """Returns the first value of each variable that was created."""
        return [jnp.asarray(value) for value in self._initial_values]

    def create(self, variable: Variable, initial_value: Any) -> None:
        """Notes a new variable, which gets its value after tracing, if that is traced."""
        self.created.append(variable)
        self._initial_values.append(initial_value)
        if not variable.initialized and not is_tracer(initial_value):
            evaluate_now(lambda: variable.initialize(initial_value))
        elif not variable.initialized and variable.expects_value:
            # The others, which have it already, compute no first value with this process.
            zeros = np.zeros(initial_value.shape, initial_value.dtype)
            evaluate_now(lambda: variable.initialize(zeros))
        in_program = variable.replica_value if self.spmd else variable.program_value
        self._values[id(variable)] = in_program(initial_value)


class EndNotCaught(OutOfRangeError):
    """The end of the data that a traced function did not catch."""


class FunctionFrame(TracingFrame):
    """Frame of a traced ``function``.

    Args:
        may_create: Whether variables may be created, as on a function's first call.

    Attributes:
        groups: The devices that were used.
        draws: The elements that were drawn.
        num_steps: How many calls of ``strategy.run`` and of compiled functions were traced.
        stopped_by: What was raised because there is no program for this call. It counts also if the
            function has caught it: what it did then would be repeated by every later call.
        ended_by: What was raised at the end of the data. A function that catches it has a program for
            calls at the end.
    """

    def __init__(self, *, may_create: bool) -> None:
        super().__init__()
        self._may_create = may_create
        self.groups: list[ReplicaGroup] = []
        self.draws: list[Draw] = []
        self.num_steps = 0
        self._steps: collections.Counter[Any] = collections.Counter()
        self.stopped_by: Exception | None = None
        self.ended_by: EndOfData | None = None

    def use_group(self, group: ReplicaGroup) -> None:
        """Notes that the program runs on ``group``."""
        self.groups.append(group)

    def draw(self, iterator: AnyIterator, *, optional: bool = False) -> Any:
        """Draws an element, to be an input of the program.

        Raises:
            EndOfData: At the end, unless ``optional``.
            ContextError: In the body of a loop of JAX, and the like.
        """
        if not stages_into(self._trace):
            raise ContextError(
                "next(iterator) is called inside a JAX transformation (lax.scan, lax.cond, jax.jit, "
                "jax.checkpoint, ...), which calls the function once for all of its runs. Call it "
                "outside and pass the element."
            )
        try:
            drawn = draw_element(iterator)
            self.draws.append(drawn)
            element = drawn.traced(len(self.draws) - 1, self._trace)
        except RaggedElement as error:
            self.stopped_by = error
            raise
        if element is MISSING and not optional:
            self.ended_by = EndOfData()
            raise self.ended_by
        return element

    def unless_stopped(self, call: Callable[[], Any]) -> Any:
        """Returns what ``call`` does, or raises what has stopped it, also if it has caught that.

        Raises:
            EndNotCaught: If it did not catch the end of the data.
        """
        try:
            result = call()
        except Exception as error:
            # A generator, of JAX perhaps, makes a RuntimeError of a StopIteration that leaves it.
            if self.ended_by is not None and self.ended_by in (error, error.__cause__):
                raise EndNotCaught("End of the dataset.") from None
            if self.stopped_by is None or self.stopped_by is error:
                raise
            raise self.stopped_by from error
        if self.stopped_by is not None:
            raise self.stopped_by
        return result

    def note_step(self, fn: Any) -> None:
        """Counts a step; says once that a Python loop over it is unrolled, which nothing else shows."""
        self.num_steps += 1
        code = code_of(fn)
        self._steps[code] += 1
        if self._steps[code] == _STEPS_TO_WARN and code not in _warned:
            _warned.add(code)
            _logger.warning(
                "A stratagem.function calls %s for the third time while it is traced. A loop over Python's "
                "range, or a while loop, is unrolled: its program has the body once for each iteration, "
                "and takes as much longer to compile. Loop over tf.range or a dataset to compile it once.",
                getattr(fn, "__qualname__", repr(fn)),
            )

    def refuse_to_loop(self, dataset: Any) -> None:
        """Raises: how often the loop runs is not known while tracing."""
        self.stopped_by = LoopsOverDataset()
        raise self.stopped_by

    def create(self, variable: Variable, initial_value: Any) -> None:
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


class ReplicaFrame(TracingFrame):
    """Frame of the one program that all replicas run: values are those of one replica."""

    spmd = True

    def __init__(self, group: ReplicaGroup) -> None:
        super().__init__()
        self._group = group
        self._read_since_meeting: set[int] = set()
        self._turns: dict[int, tuple[Variable, list[tuple[Update, Any]]]] = {}
        # With the gradients, which are kept alive so that their identities stay theirs.
        self._known_sums: dict[int, tuple[Any, Any]] = {}

    def close(self) -> None:
        """Forgets the traced values."""
        super().close()
        self._known_sums = {}

    def note_sum(self, gradient: Any, part: Any) -> None:
        """Notes this replica's part of the sum over the replicas of a gradient."""
        self._known_sums[id(gradient)] = (gradient, part)

    def known_sum(self, gradient: Any) -> Any | None:
        """Returns what ``note_sum`` was told."""
        return self._known_sums.get(id(gradient), (None, None))[1]

    def read(self, variable: Variable) -> Any:
        """Returns this replica's traced value."""
        if id(variable) in self._turns:
            self._refuse_order(variable)
        self._read_since_meeting.add(id(variable))
        return super().read(variable)

    def update_in_turn(self, variable: Variable, update: Update, operand: Any) -> None:
        """Notes the update; ``flush`` carries it out for one replica after the other."""
        if id(variable) in self._read_since_meeting:
            self._refuse_order(variable)
        self._turns.setdefault(id(variable), (variable, []))[1].append((update, operand))

    def flush(self) -> None:
        """Carries out the updates in turn; called where the replicas meet and at the end."""
        self._read_since_meeting.clear()
        turns, self._turns = self._turns, {}
        for variable, _ in turns.values():
            self.check_writable(variable)
        for variable, noted in turns.values():
            value = super().read(variable)
            gathered = [
                (update, jax.tree.map(lambda x: gather_spmd(x[None], 0), operand))
                for update, operand in noted
            ]
            # A variable of no strategy belongs to one process, whose replicas alone update it.
            index = jax.lax.axis_index(REPLICA_AXIS)
            first = index - index % self._group.local_size if self._group.spans_processes else 0
            for replica in range(self._group.local_size):
                for update, operands in gathered:
                    mine = jax.tree.map(lambda x, turn=first + replica: x[turn], operands)
                    value = update.apply(value, mine)
            self.write(variable, value)

    def _refuse_order(self, variable: Variable) -> NoReturn:
        raise VariableError(
            f"Variable {variable.name!r} was created outside of the strategy's scope, so the replicas "
            "update it in turn; in a compiled step it cannot also be read by them, because what is read "
            "would depend on whose turn it is. Create it inside strategy.scope(), or run the step "
            "eagerly."
        )


class GradientFrame(StateFrame):
    """Frame of ``value_and_grad``: holds what is differentiated and what the function assigns.

    Args:
        parent: The frame around it, if any.
    """

    def __init__(self, parent: StateFrame | None) -> None:
        super().__init__()
        self.spmd = parent is not None and parent.spmd
        self.eager = parent is None or parent.eager
        self.joins_collectives = parent is not None and parent.joins_collectives
        self.parent = parent
        self.written: dict[int, Variable] = {}
        self.remote = RemoteAccess()
        self.taps = GradientTaps()
        self._tapped: set[int] = set()
        self._fetchable = parent is None or parent.is_innermost_trace()
        self._values: dict[int, Any] = {}
        self._parts_and_taps: dict[int, tuple[Any, Any]] = {}

    def is_innermost_trace(self) -> bool:
        """Returns whether no other transformation stands here, or around ``value_and_grad``."""
        return self._fetchable and super().is_innermost_trace()

    def draw(self, iterator: AnyIterator, *, optional: bool = False) -> Any:
        """Draws as the frame around it does."""
        if self.parent is None:
            return iterator.draw(optional=optional)
        return self.parent.draw(iterator, optional=optional)

    def refuse_to_loop(self, dataset: Any) -> None:
        """Asks the frame around it."""
        if self.parent is not None:
            self.parent.refuse_to_loop(dataset)

    def use_group(self, group: ReplicaGroup) -> None:
        """Tells the frame around it."""
        if self.parent is not None:
            self.parent.use_group(group)

    def differentiate(self, variables: Sequence[Variable], values: Sequence[Any]) -> None:
        """Gives ``variables`` the values that gradients are taken with respect to."""
        self.open()
        self._values = {
            id(variable): value for variable, value in zip(variables, values, strict=True)
        }

    def splits(self, variable: Variable) -> bool:
        """Returns whether a variable is differentiated with respect to its parts.

        Where another gradient is taken around this one, it needs that of the whole.
        """
        is_divided = isinstance(variable, FullyShardedVariable)
        return is_divided and isinstance(self.parent, ReplicaFrame) and not records()

    def tap_parts(self, variables: Sequence[Variable], taps: Sequence[Any]) -> None:
        """Takes what the replica's own gradients of variables hang on that ``splits`` is true of."""
        self._parts_and_taps = {
            id(v): (self._values.pop(id(v)), tap) for v, tap in zip(variables, taps, strict=True)
        }

    def fetches(self, variable: Variable) -> bool:
        """Returns whether a differentiated variable is fetched when read, not before.

        A program's inputs cost nothing unless they are used; eagerly, all of a table would move.
        """
        return self.eager and isinstance(variable, RemotelyHeldVariable)

    def tap(self, variables: Sequence[Variable], anchor: Any) -> None:
        """Takes the remote variables that are differentiated, and what their gradients hang on."""
        self._tapped = {id(variable) for variable in variables}
        self.taps.open(anchor)

    def read(self, variable: Variable) -> Any:
        """Returns the value of this frame, or of what is around it."""
        if isinstance(variable, RemotelyHeldVariable):
            return self.remote.current(variable, self._read_remote(variable))
        if isinstance(variable, FullyShardedVariable):
            return self.whole(variable)
        if id(variable) in self._values:
            return self._values[id(variable)]
        return self._read_around(variable)

    def whole(self, variable: FullyShardedVariable, row: Any = None) -> Any:
        """Returns the value of this frame, or of what is around it."""
        if id(variable) in self._parts_and_taps:
            return variable.parts.tapped(*self._parts_and_taps[id(variable)], row)
        if id(variable) not in self._values and self.parent is not None:
            return self.parent.whole(variable, row)
        value = self._values.get(id(variable))
        value = variable._eager_value() if value is None else value
        return value if row is None else value[row]

    def _read_around(self, variable: Variable) -> Any:
        return self.parent.read(variable) if self.parent is not None else variable._eager_value()

    def _read_remote(self, variable: RemotelyHeldVariable) -> Any:
        self._check_known_here(variable)
        if id(variable) in self._values:
            self.taps.note_whole(variable)
        elif id(variable) not in self._tapped:
            return self._read_around(variable)
        else:
            self.check_fetchable(variable)
            self._values[id(variable)] = self.taps.whole(variable, self._read_around(variable))
        return self._values[id(variable)]

    def rows(self, variable: RemotelyHeldVariable, indices: Any) -> Any:
        """Returns rows whose gradient will be caught, if the variable is differentiated."""
        self._check_known_here(variable)

        def read(numbers: Any) -> Any:
            around = self.parent
            rows = variable.rows_now(numbers) if around is None else around.rows(variable, numbers)
            tapped = id(variable) in self._tapped
            return self.taps.rows(variable, numbers, rows) if tapped else rows

        return self.remote.current_rows(variable, indices, read)

    def update_remotely(self, variable: RemotelyHeldVariable, update: Update, operand: Any) -> None:
        """Keeps the update until the gradient is done."""
        self.remote.note(variable, update, operand)

    def _check_known_here(self, variable: RemotelyHeldVariable) -> None:
        if self.remote.updates_before_read(variable):
            raise VariableError(
                f"Variable {variable.name!r} is read inside value_and_grad after an update that only "
                "its server can carry out. Update it after value_and_grad."
            )

    def write(self, variable: Variable, value: Any) -> None:
        """Keeps the value until the gradient is done."""
        self._parts_and_taps.pop(id(variable), None)
        self._values[id(variable)] = value
        self.written[id(variable)] = variable

    def written_values(self) -> list[Any]:
        """Returns the last value of each assigned variable."""
        return [self._values[key] for key in self.written]

    def update_in_turn(self, variable: Variable, update: Update, operand: Any) -> None:
        """Hands the update on, if it does not depend on what is differentiated."""
        if self.parent is not None and not any(map(is_tracer, jax.tree.leaves(operand))):
            self.parent.update_in_turn(variable, update, operand)
        else:
            raise VariableError(
                f"Variable {variable.name!r} was created outside of the strategy's scope and cannot be "
                "updated by several replicas inside value_and_grad. Create it inside "
                "strategy.scope(), or update it after value_and_grad."
            )


class ForeignFrame(StateFrame):
    """Frame of a replica that is traced by the user's own ``jax.jit``: no variables there."""

    spmd = True
    joins_collectives = False

    def read(self, variable: Variable) -> Any:
        """Raises: the value would be compiled in."""
        self._refuse(variable)

    def write(self, variable: Variable, value: Any) -> None:
        """Raises: the value could not leave."""
        self._refuse(variable)

    def check_writable(self, variable: Variable) -> None:
        """Raises: the value could not leave."""
        self._refuse(variable)

    def check_fetchable(self, variable: Variable) -> None:
        """Raises: the rows would be compiled in."""
        self._refuse(variable)

    def _refuse(self, variable: Variable) -> NoReturn:
        raise ContextError(
            f"Variable {variable.name!r} is used inside the user's own jax.jit. Use stratagem.function "
            "in place of jax.jit, or pass parameters as arguments."
        )
