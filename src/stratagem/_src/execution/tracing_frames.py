"""State frames that hold the values of variables while a function, a replica or a gradient is traced."""

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
from stratagem._src.core.input_kinds import EndOfData
from stratagem._src.core.types import (
    ArrayLike,
    Dataset,
    IntegerLike,
    PyTree,
    ReplicaFunction,
    Tensor,
)
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
from stratagem._src.variables.base_remote_variable import BaseRemoteVariable
from stratagem._src.variables.frames import StateFrame, records
from stratagem._src.variables.fully_sharded_variable import FullyShardedVariable
from stratagem._src.variables.updates import Update
from stratagem._src.variables.variable import Variable

_STEPS_TO_WARN = 3
_warned: weakref.WeakSet[Any] = weakref.WeakSet()
_logger = logging.getLogger("stratagem")

__all__ = [
    "FunctionFrame",
    "GradientFrame",
    "LoopsOverDataset",
    "ReplicaFrame",
    "TracingFrame",
    "UncaughtEndOfData",
    "UserJitFrame",
    "code_of",
]


def code_of(fn: Any) -> Any:
    """Returns the code object of a function, method or callable object; its type if it has none."""
    fn = inspect.unwrap(fn)
    while isinstance(fn, functools.partial):
        fn = fn.func
    fn = getattr(fn, "__func__", fn)
    code = getattr(fn, "__code__", None)
    return code if code is not None else getattr(type(fn).__call__, "__code__", type(fn))


class TracingFrame(StateFrame):
    """Holds the traced values of variables; a variable becomes an input of the program when first read."""

    holds_shards = True

    def __init__(self) -> None:
        super().__init__()
        self._trace: Any = None
        # Keeps the variables alive: their ids are keys here, and traced operations hold weak references.
        self._read: list[Variable] = []
        self.written: dict[int, Variable] = {}
        self.created: list[Variable] = []
        self._initial_values: list[Any] = []
        self.remote = RemoteAccess()
        self._values: dict[int, Any] = {}
        self._fetched_later: dict[tuple[int, int], Any] = {}

    def open(self) -> None:
        """Notes the trace that this frame belongs to; must be called once that trace is active."""
        super().open()
        self._trace = active_trace()

    def in_own_trace(self) -> contextlib.AbstractContextManager[Any]:
        """Makes the operations of the block part of this frame's own trace."""
        return in_trace(self._trace)

    def close(self) -> None:
        """Drops the traced values, which are invalid once tracing has ended."""
        self._trace = None
        self._values = {}
        self._fetched_later = {}
        self._initial_values = []

    def read(self, variable: Variable) -> Any:
        """Returns the current traced value."""
        if isinstance(variable, BaseRemoteVariable):
            return self.remote.current(variable, self._fetched(variable))
        return self._current(variable)

    def _current(self, variable: Variable) -> Any:
        if id(variable) not in self._values:
            self._read.append(variable)
            shape = variable.replica_shape if self.spmd else variable.program_shape
            self._values[id(variable)] = read_first(variable, shape, self._trace)
        return self._values[id(variable)]

    def _fetched(self, variable: BaseRemoteVariable) -> Any:
        """Returns the full value of a remote variable, fetched after the updates that it depends on."""
        # A value that no server-side update precedes is fetched once, before the program. Each later value
        # is a separate marker: `split_into_stages` sends the updates first.
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

    def rows(self, variable: BaseRemoteVariable, indices: ArrayLike) -> Any:
        """Returns rows that are fetched before the program runs, with this trace's own updates applied."""
        self.use_group(variable.group)
        self._read.append(variable)
        after = self.remote.updates_before_read(variable)
        return self.remote.current_rows(
            variable, indices, lambda numbers: read_rows(variable, numbers, after)
        )

    def update_remotely(
        self, variable: BaseRemoteVariable, update: Update, operand: PyTree
    ) -> None:
        """Notes an update that is sent after the program has run."""
        self.use_group(variable.group)
        self.remote.note(variable, update, operand)

    def write(self, variable: Variable, value: Tensor) -> None:
        """Sets the traced value."""
        self._values[id(variable)] = value
        self.written[id(variable)] = variable

    def written_values(self) -> list[Any]:
        """Returns the last value of each written variable."""
        return [self._values[key] for key in self.written]

    def initial_values(self) -> list[Any]:
        """Returns the initial value of each created variable."""
        return [jnp.asarray(value) for value in self._initial_values]

    def create(self, variable: Variable, initial_value: ArrayLike) -> None:
        """Notes a new variable; if its initial value is traced, it gets that value after tracing."""
        self.created.append(variable)
        self._initial_values.append(initial_value)
        if not variable.initialized and not is_tracer(initial_value):
            evaluate_now(lambda: variable.initialize(initial_value))
        elif not variable.initialized and variable.expects_value:
            # The other processes already have this variable and do not take part in computing its initial
            # value. This process gets theirs, so a placeholder will do.
            zeros = np.zeros(initial_value.shape, initial_value.dtype)
            evaluate_now(lambda: variable.initialize(zeros))
        in_program = variable.replica_value if self.spmd else variable.program_value
        self._values[id(variable)] = in_program(initial_value)


class LoopsOverDataset(Exception):
    """A traced function iterates over a distributed dataset: it must run as a Python loop instead."""


class UncaughtEndOfData(OutOfRangeError):
    """A traced function did not catch the end of the data."""


class FunctionFrame(TracingFrame):
    """Frame of a traced ``function``.

    Args:
        may_create: Whether variables may be created, as on a function's first call.

    Attributes:
        groups: The replica groups whose devices were used.
        draws: The elements that were drawn.
        num_steps: Number of traced calls of ``strategy.run`` and of compiled functions.
        stopped_by: The exception that ended the trace because this call cannot be compiled. It applies even
            if the function caught it: the program would repeat in every call what the function did then.
        ended_by: The exception that was raised at the end of the data. A function that catches it gets a
            program for calls at the end.
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
            # A generator (of JAX, for example) turns a StopIteration that leaves it into a RuntimeError.
            if self.ended_by is not None and self.ended_by in (error, error.__cause__):
                raise UncaughtEndOfData("End of the dataset.") from None
            if self.stopped_by is None or self.stopped_by is error:
                raise
            raise self.stopped_by from error
        if self.stopped_by is not None:
            raise self.stopped_by
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


class ReplicaFrame(TracingFrame):
    """Frame of the SPMD program of all replicas; the traced values are those of one replica."""

    spmd = True

    def __init__(self, group: ReplicaGroup) -> None:
        super().__init__()
        self._group = group
        self._read_since_sync: set[int] = set()
        self._pending_updates: dict[int, tuple[Variable, list[tuple[Update, Any]]]] = {}
        # Each entry also keeps its gradient alive, so that its id stays unique.
        self._reduced_shards: dict[int, tuple[Any, Any]] = {}
        self._losses: dict[int, tuple[Any, Any]] = {}

    def close(self) -> None:
        """Drops the traced values."""
        super().close()
        self._reduced_shards = {}
        self._losses = {}

    def note_loss(self, loss: Tensor, gradients: Sequence[Any]) -> None:
        """Notes the loss of which ``gradients`` are this replica's gradients."""
        self._losses |= {id(gradient): (gradient, loss) for gradient in gradients}

    def loss_of(self, gradient: Tensor) -> Any | None:
        """Returns the loss that ``note_loss`` got for a gradient, if any."""
        return self._losses.get(id(gradient), (None, None))[1]

    def note_reduced_shard(self, gradient: Tensor, shard: Tensor) -> None:
        """Notes this replica's shard of a gradient that is summed over the replicas (reduce-scattered)."""
        self._reduced_shards[id(gradient)] = (gradient, shard)

    def reduced_shard(self, gradient: Tensor) -> Any | None:
        """Returns the shard that ``note_reduced_shard`` got for a gradient, if any."""
        return self._reduced_shards.get(id(gradient), (None, None))[1]

    def read(self, variable: Variable) -> Any:
        """Returns this replica's traced value."""
        if id(variable) in self._pending_updates:
            self._refuse_order(variable)
        self._read_since_sync.add(id(variable))
        return super().read(variable)

    def update_in_turn(self, variable: Variable, update: Update, operand: PyTree) -> None:
        """Notes the update; ``flush`` applies it for one replica after the other."""
        if id(variable) in self._read_since_sync:
            self._refuse_order(variable)
        self._pending_updates.setdefault(id(variable), (variable, []))[1].append((update, operand))

    def flush(self) -> None:
        """Applies the pending updates, replica by replica; called at every synchronization and at the end.

        Every replica gathers the operands of all replicas and applies them in the order of the replicas, so
        that all replicas compute the same new value.
        """
        self._read_since_sync.clear()
        pending, self._pending_updates = self._pending_updates, {}
        for variable, _ in pending.values():
            self.check_writable(variable)
        for variable, noted in pending.values():
            value = super().read(variable)
            gathered = [
                (update, jax.tree.map(lambda x: gather_spmd(x[None], 0), operand))
                for update, operand in noted
            ]
            # A variable outside of any strategy belongs to one process: only the replicas of that process
            # update it.
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
            "update it in turn; in a compiled step they cannot also read it, because the value would "
            "depend on whose turn it is. Create it inside strategy.scope(), or run the step "
            "eagerly."
        )


class GradientFrame(StateFrame):
    """Frame of ``value_and_grad``: holds the differentiated values and those that the function assigns.

    Args:
        parent: The frame around it, if any.
    """

    def __init__(self, parent: StateFrame | None) -> None:
        super().__init__()
        self.spmd = parent is not None and parent.spmd
        self.eager = parent is None or parent.eager
        self.fuses_collectives = parent is not None and parent.fuses_collectives
        self.parent = parent
        self.written: dict[int, Variable] = {}
        self.remote = RemoteAccess()
        self.taps = GradientTaps()
        self._tapped: set[int] = set()
        self._fetchable = parent is None or parent.is_innermost_trace()
        self._values: dict[int, Any] = {}
        self._shards_and_taps: dict[int, tuple[Any, Any]] = {}

    def is_innermost_trace(self) -> bool:
        """Returns whether no other JAX transformation is active inside or around ``value_and_grad``."""
        return self._fetchable and super().is_innermost_trace()

    def draw(self, iterator: AnyIterator, *, optional: bool = False) -> Any:
        """Draws through the outer frame."""
        if self.parent is None:
            return iterator.draw(optional=optional)
        return self.parent.draw(iterator, optional=optional)

    def refuse_to_loop(self, dataset: Dataset) -> None:
        """Forwards to the outer frame."""
        if self.parent is not None:
            self.parent.refuse_to_loop(dataset)

    def use_group(self, group: ReplicaGroup) -> None:
        """Forwards to the outer frame."""
        if self.parent is not None:
            self.parent.use_group(group)

    def differentiate(self, variables: Sequence[Variable], values: Sequence[Any]) -> None:
        """Sets the values of ``variables`` that the gradients are taken with respect to."""
        self.open()
        self._values = {
            id(variable): value for variable, value in zip(variables, values, strict=True)
        }

    def differentiates_shards(self, variable: Variable) -> bool:
        """Returns whether a variable is differentiated with respect to its shards.

        An outer gradient computation would need the gradient of the full value.
        """
        is_divided = isinstance(variable, FullyShardedVariable)
        return is_divided and isinstance(self.parent, ReplicaFrame) and not records()

    def tap_shards(self, variables: Sequence[Variable], taps: Sequence[Any]) -> None:
        """Sets the taps that collect the replica's own gradients of variables that are sharded here."""
        self._shards_and_taps = {
            id(v): (self._values.pop(id(v)), tap) for v, tap in zip(variables, taps, strict=True)
        }

    def fetches_on_read(self, variable: Variable) -> bool:
        """Returns whether a differentiated variable is fetched only when it is read.

        Unused inputs of a program cost nothing, but eagerly a full embedding table would be transferred.
        """
        return self.eager and isinstance(variable, BaseRemoteVariable)

    def tap(self, variables: Sequence[Variable], anchor: Tensor) -> None:
        """Sets the differentiated remote variables, and the anchor that their gradients depend on."""
        self._tapped = {id(variable) for variable in variables}
        self.taps.open(anchor)

    def read(self, variable: Variable) -> Any:
        """Returns the value in this frame, or in the outer frame."""
        if isinstance(variable, BaseRemoteVariable):
            return self.remote.current(variable, self._read_remote(variable))
        if isinstance(variable, FullyShardedVariable):
            return self.full_value(variable)
        if id(variable) in self._values:
            return self._values[id(variable)]
        return self._read_outer(variable)

    def full_value(self, variable: FullyShardedVariable, row: IntegerLike = None) -> Any:
        """Returns the value in this frame, or in the outer frame."""
        if id(variable) in self._shards_and_taps:
            return variable.shard_layout.all_gather_with_tap(
                *self._shards_and_taps[id(variable)], row
            )
        if id(variable) not in self._values and self.parent is not None:
            return self.parent.full_value(variable, row)
        value = self._values.get(id(variable))
        value = variable._eager_value() if value is None else value
        return value if row is None else value[row]

    def _read_outer(self, variable: Variable) -> Any:
        return self.parent.read(variable) if self.parent is not None else variable._eager_value()

    def _read_remote(self, variable: BaseRemoteVariable) -> Any:
        self._check_no_server_update(variable)
        if id(variable) in self._values:
            self.taps.note_full_read(variable)
        elif id(variable) not in self._tapped:
            return self._read_outer(variable)
        else:
            self.check_fetchable(variable)
            self._values[id(variable)] = self.taps.full_value(variable, self._read_outer(variable))
        return self._values[id(variable)]

    def rows(self, variable: BaseRemoteVariable, indices: ArrayLike) -> Any:
        """Returns rows whose gradient is recorded if the variable is differentiated."""
        self._check_no_server_update(variable)

        def read(numbers: ArrayLike) -> Any:
            outer = self.parent
            rows = variable.rows_now(numbers) if outer is None else outer.rows(variable, numbers)
            tapped = id(variable) in self._tapped
            return self.taps.rows(variable, numbers, rows) if tapped else rows

        return self.remote.current_rows(variable, indices, read)

    def update_remotely(
        self, variable: BaseRemoteVariable, update: Update, operand: PyTree
    ) -> None:
        """Keeps the update until the gradient has been computed."""
        self.remote.note(variable, update, operand)

    def _check_no_server_update(self, variable: BaseRemoteVariable) -> None:
        if self.remote.updates_before_read(variable):
            raise VariableError(
                f"Variable {variable.name!r} is read inside value_and_grad after an update that only "
                "its server can apply. Update it after value_and_grad."
            )

    def write(self, variable: Variable, value: Tensor) -> None:
        """Keeps the value until the gradient has been computed."""
        self._shards_and_taps.pop(id(variable), None)
        self._values[id(variable)] = value
        self.written[id(variable)] = variable

    def written_values(self) -> list[Any]:
        """Returns the last value of each assigned variable."""
        return [self._values[key] for key in self.written]

    def update_in_turn(self, variable: Variable, update: Update, operand: PyTree) -> None:
        """Forwards the update, if it does not depend on differentiated values."""
        if self.parent is not None and not any(map(is_tracer, jax.tree.leaves(operand))):
            self.parent.update_in_turn(variable, update, operand)
        else:
            raise VariableError(
                f"Variable {variable.name!r} was created outside of the strategy's scope and cannot be "
                "updated by several replicas inside value_and_grad. Create it inside "
                "strategy.scope(), or update it after value_and_grad."
            )


class UserJitFrame(StateFrame):
    """Frame of a replica that the user's own ``jax.jit`` traces: it rejects all use of variables."""

    spmd = True
    fuses_collectives = False

    def read(self, variable: Variable) -> Any:
        """Raises: the value would become a constant of the program."""
        self._refuse(variable)

    def write(self, variable: Variable, value: Tensor) -> None:
        """Raises: the new value could not leave the program."""
        self._refuse(variable)

    def check_writable(self, variable: Variable) -> None:
        """Raises: the new value could not leave the program."""
        self._refuse(variable)

    def check_fetchable(self, variable: Variable) -> None:
        """Raises: the rows would become constants of the program."""
        self._refuse(variable)

    def _refuse(self, variable: Variable) -> NoReturn:
        raise ContextError(
            f"Variable {variable.name!r} is used inside the user's own jax.jit. Use stratagem.function "
            "in place of jax.jit, or pass parameters as arguments."
        )
