"""Where reads and writes of variables go.

Outside of any transformation a variable's value is the array it stores. While a function is traced,
and inside ``value_and_grad``, a *state frame* stands in between: reads come from it and writes stay
in it until the frame's owner hands them on. So a tracer never ends up in a variable.
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from stratagem._src.core.errors import ContextError
from stratagem._src.core.this_thread import THIS_THREAD
from stratagem._src.core.tracing import trace_state

if TYPE_CHECKING:
    from stratagem._src.mesh.replica_group import ReplicaGroup
    from stratagem._src.variables.fully_sharded_variable import FullyShardedVariable
    from stratagem._src.variables.remotely_held_variable import RemotelyHeldVariable
    from stratagem._src.variables.updates import Update
    from stratagem._src.variables.variable import Variable

__all__ = [
    "Journal",
    "StateFrame",
    "current_frame",
    "current_journal",
    "enter",
    "journaled",
    "outside_of_frames",
    "transaction",
]


class StateFrame(abc.ABC):
    """Holds variables' values for as long as a trace lasts.

    Attributes:
        spmd: Whether values are those of one replica, inside the program that all replicas run.
        eager: Whether no program is made, only a gradient taken.
        joins_collectives: Whether collectives of the program that is made are joined afterwards.
        in_parts: Whether it holds fully sharded variables as programs do; else it holds them whole.
    """

    spmd = False
    eager = False
    joins_collectives = True
    in_parts = False

    def __init__(self) -> None:
        self._trace_state: Any = None

    def open(self) -> None:
        """Notes the trace that this frame belongs to; called once it is active."""
        self._trace_state = trace_state()

    @abc.abstractmethod
    def read(self, variable: Variable) -> Any:
        """Returns the variable's value in this frame."""

    def whole(self, variable: FullyShardedVariable, row: Any = None) -> Any:
        """Returns all of the value of a variable that programs have in parts, or one row of it."""
        value = self.read(variable)
        if self.in_parts:
            return variable.joined(value, row, in_replica=self.spmd)
        return value if row is None else value[row]

    def known_sum(self, gradient: Any) -> Any | None:
        """Returns this replica's part of the sum over the replicas of a gradient, if it is known."""
        return None

    @abc.abstractmethod
    def write(self, variable: Variable, value: Any) -> None:
        """Sets the variable's value in this frame."""

    def write_whole(self, variable: FullyShardedVariable, value: Any) -> None:
        """Sets the value of a variable that programs have in parts, given all of it."""
        if self.in_parts:
            value = variable.taken_apart(value, in_replica=self.spmd)
        self.write(variable, value)

    def check_writable(self, variable: Variable) -> None:
        """Checks that no other transformation stands between this frame and the caller.

        Raises:
            ContextError: Inside ``jax.jit``, ``lax.scan``, ``jax.grad`` and the like.
        """
        if not self.is_innermost_trace():
            raise ContextError(
                f"Variable {variable.name!r} is assigned inside a JAX transformation (jax.jit, "
                "jax.grad, jax.vmap, lax.scan, lax.cond, ...), where the new value cannot leave. "
                "Return the value from the transformed function and assign it outside, or use "
                "stratagem.value_and_grad in place of jax.value_and_grad."
            )

    def check_fetchable(self, variable: Variable) -> None:
        """Checks that what is read here can be fetched before the program of this trace runs.

        Raises:
            ContextError: Inside ``jax.jit``, ``lax.scan``, ``jax.vmap`` and the like.
        """
        if not self.is_innermost_trace():
            raise ContextError(
                f"Variable {variable.name!r} lives on a parameter server and is read inside a JAX "
                "transformation (jax.jit, jax.vmap, jax.checkpoint, lax.scan, lax.cond, ...), where it "
                "cannot be fetched. Read it, or the rows, before and pass them in; sparse_read() takes "
                "indices of any shape, so that all rows can be read at once."
            )

    def is_innermost_trace(self) -> bool:
        """Returns whether no other transformation stands between this frame and the caller."""
        return bool(trace_state() == self._trace_state)

    def create(self, variable: Variable, initial_value: Any) -> None:
        """Takes over a variable that is created while tracing.

        Raises:
            ContextError: Where variables cannot be created.
        """
        raise ContextError(
            f"Variable {variable.name!r} cannot be created here. Create it outside of "
            "value_and_grad and of JAX transformations."
        )

    def use_group(self, group: ReplicaGroup) -> None:  # noqa: B027  (most frames need not know)
        """Notes that the program made from this trace runs on ``group``."""

    def draw(self, iterator: Any, *, optional: bool = False) -> Any:
        """Returns the next element of a distributed iterator, as this trace sees it.

        Args:
            iterator: The iterator.
            optional: Whether there need not be one; then ``MISSING`` stands for it.
        """
        raise ContextError(
            "next(iterator) cannot be called here. Call it outside and pass the element."
        )

    def refuse_to_loop(self, dataset: Any) -> None:  # noqa: B027  (most frames do not mind)
        """Called when a distributed dataset is iterated over; raises where that cannot be traced."""

    def update_in_turn(self, variable: Variable, update: Update, operand: Any) -> None:
        """Applies each replica's update to a variable that all replicas share, one by one."""
        raise NotImplementedError

    def read_rows(self, variable: RemotelyHeldVariable, indices: Any) -> Any:
        """Returns rows of a variable that another process holds."""
        self.check_fetchable(variable)
        return self.rows(variable, indices)

    def rows(self, variable: RemotelyHeldVariable, indices: Any) -> Any:
        """Does what ``read_rows`` does where it is known to be possible."""
        raise NotImplementedError

    def update_remotely(self, variable: RemotelyHeldVariable, update: Update, operand: Any) -> None:
        """Notes an update of a variable that another process holds, to be sent to it."""
        raise NotImplementedError


class Journal:
    """Remembers what variables held, to put it back if the call fails.

    Args:
        parent: The journal of the call around this one, which must hear of every change too.
        keeps_draws: Whether elements that are drawn from iterators are given again after a failure.
    """

    def __init__(self, parent: Journal | None = None, *, keeps_draws: bool = False) -> None:
        self._parent = parent
        self._keeps_draws = keeps_draws
        self._drawn: list[Callable[[], None]] = []
        self._before: dict[int, tuple[Variable, Any]] = {}
        self._rolled_back = False

    def record(self, variable: Variable) -> None:
        """Notes the variable's content before its first change.

        Raises:
            ContextError: If the call has already failed and been rolled back.
        """
        if self._rolled_back:
            raise ContextError(
                f"Variable {variable.name!r} is changed by a replica whose call has already ended with "
                "an error."
            )
        if id(variable) not in self._before:
            self._before[id(variable)] = (variable, variable.snapshot())
            if self._parent is not None:
                self._parent.record(variable)

    def note_draw(self, put_back: Callable[[], None]) -> None:
        """Notes how to put back an element that was drawn from an iterator."""
        if self._keeps_draws:
            self._drawn.append(put_back)

    def roll_back(self) -> None:
        """Gives every changed variable the content it had."""
        self._rolled_back = True
        for put_back in reversed(self._drawn):
            put_back()
        for variable, content in self._before.values():
            variable.restore_snapshot(content)


def current_frame() -> StateFrame | None:
    """Returns this thread's innermost state frame, if any."""
    frames: list[StateFrame] = THIS_THREAD.state.state_frames
    return frames[-1] if frames else None


@contextlib.contextmanager
def enter(frame: StateFrame) -> Iterator[StateFrame]:
    """Makes ``frame`` this thread's innermost state frame for the block."""
    thread = THIS_THREAD.state
    thread.will_enter()
    thread.state_frames.append(frame)
    try:
        yield frame
    finally:
        thread.state_frames.pop()
        thread.has_left()


@contextlib.contextmanager
def outside_of_frames() -> Iterator[None]:
    """Lets this thread use variables, for the block, as if nothing were traced."""
    thread = THIS_THREAD.state
    frames, thread.state_frames = thread.state_frames, []
    try:
        yield
    finally:
        if frames:
            thread.will_enter()
        thread.state_frames = frames


def current_journal() -> Journal | None:
    """Returns the journal of the call that is under way, if any."""
    journal: Journal | None = THIS_THREAD.state.journal
    return journal


@contextlib.contextmanager
def journaled(journal: Journal) -> Iterator[None]:
    """Makes this thread note changes of variables in ``journal`` for the block."""
    thread = THIS_THREAD.state
    thread.will_enter()
    before, thread.journal = thread.journal, journal
    try:
        yield
    finally:
        thread.journal = before
        thread.has_left()


@contextlib.contextmanager
def transaction(*, keeps_draws: bool = False) -> Iterator[Journal]:
    """Takes back every change of variables in the block if it ends with an error.

    Args:
        keeps_draws: Whether iterators give again what the block has drawn from them, too.
    """
    journal = Journal(current_journal(), keeps_draws=keeps_draws)
    try:
        with journaled(journal):
            yield journal
    except BaseException:
        journal.roll_back()
        raise
