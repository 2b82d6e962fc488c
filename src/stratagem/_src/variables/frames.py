"""State frames: where reads and writes of variables go while a function is traced.

Outside of any transformation a variable's value is the array that it stores. While a function is traced,
and inside ``value_and_grad``, a *state frame* intercepts: reads come from the frame, and writes stay in it
until the frame's owner commits them. So a tracer never leaks into a variable.
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from stratagem._src.core.errors import ContextError
from stratagem._src.core.thread_state import THIS_THREAD, THREADS_IN_CONTEXT
from stratagem._src.core.types import (
    ArrayLike,
    Dataset,
    Initializer,
    PyTree,
    ReplicaFunction,
    Tensor,
)
from stratagem._src.jax_compat.tracing import trace_state

if TYPE_CHECKING:
    from stratagem._src.mesh.replica_group import ReplicaGroup
    from stratagem._src.variables.base_remote_variable import BaseRemoteVariable
    from stratagem._src.variables.fully_sharded_variable import FullyShardedVariable
    from stratagem._src.variables.updates import Update
    from stratagem._src.variables.variable import Variable

__all__ = [
    "ReducedGradient",
    "StateFrame",
    "Tape",
    "call_outside",
    "current_frame",
    "enter",
    "outside_of_frames",
    "record_read",
    "record_shard_read",
    "records",
]


Result = TypeVar("Result")


@dataclass(frozen=True)
class ReducedGradient:
    """A gradient that is the same in all replicas, because they have all-reduced it.

    Attributes:
        loss: The traced loss of one replica that it was computed from.
        divisors: The constants by which the sum over the replicas has been divided.
    """

    loss: Any
    divisors: tuple[float, ...]


class StateFrame(abc.ABC):
    """Holds the values of variables while a trace is active.

    Attributes:
        spmd: Whether values are those of one replica, inside the program that all replicas run.
        eager: Whether the frame only takes a gradient and makes no program.
        fuses_collectives: Whether a later pass fuses the collectives of the traced program.
        holds_shards: Whether it holds the shards of fully sharded variables, as programs do, rather than
            their full values.
    """

    spmd = False
    eager = False
    fuses_collectives = True
    holds_shards = False

    def __init__(self) -> None:
        self._trace_state: Any = None

    def open(self) -> None:
        """Records the JAX trace that this frame belongs to; call it once that trace is active."""
        self._trace_state = trace_state()

    @abc.abstractmethod
    def read(self, variable: Variable) -> Any:
        """Returns the variable's value in this frame."""

    def as_computed(self, variable: Variable, value: ArrayLike) -> Any:
        """Returns a value that user code reads in the dtype that it computes in (mixed precision)."""
        return value

    def full_value(self, variable: FullyShardedVariable, row: ArrayLike | None = None) -> Any:
        """Returns the full value of a fully sharded variable, or one row of it."""
        value = self.read(variable)
        if self.holds_shards:
            return variable.unshard(value, row, in_replica=self.spmd)
        return value if row is None else value[row]

    def reduced_shard(self, gradient: ArrayLike) -> Any | None:
        """Returns this replica's shard of a gradient's sum over the replicas, if it is known already."""
        return None

    def loss_of(self, gradient: ArrayLike) -> Any | None:
        """Returns the traced loss that a gradient of this replica was computed from, if it is known."""
        return None

    def reduced_gradient(self, gradient: ArrayLike) -> ReducedGradient | None:
        """Returns what is known of a gradient that the replicas have all-reduced already."""
        return None

    @abc.abstractmethod
    def write(self, variable: Variable, value: ArrayLike) -> None:
        """Sets the variable's value in this frame."""

    def write_full_value(self, variable: FullyShardedVariable, value: ArrayLike) -> None:
        """Sets the value of a fully sharded variable, given its full value."""
        if self.holds_shards:
            value = variable.shard_value(value, in_replica=self.spmd)
        self.write(variable, value)

    def check_writable(self, variable: Variable) -> None:
        """Checks that no other transformation is active between this frame and the caller.

        Raises:
            ContextError: Inside ``jax.jit``, ``lax.scan``, ``jax.grad`` and the like.
        """
        if not self.is_innermost_trace():
            raise ContextError(
                f"Variable {variable.name!r} is assigned inside a JAX transformation (jax.jit, "
                "jax.grad, jax.vmap, lax.scan, lax.cond, ...), which the new value cannot leave. "
                "Return the value from the transformed function and assign it outside, or use "
                "stratagem.value_and_grad in place of jax.value_and_grad."
            )

    def check_fetchable(self, variable: Variable) -> None:
        """Checks that a read here can be fetched before the traced program runs.

        Raises:
            ContextError: Inside ``jax.jit``, ``lax.scan``, ``jax.vmap`` and the like.
        """
        if not self.is_innermost_trace():
            raise ContextError(
                f"Variable {variable.name!r} lives on a parameter server and is read inside a JAX "
                "transformation (jax.jit, jax.vmap, jax.checkpoint, lax.scan, lax.cond, ...), where it "
                "cannot be fetched. Read it, or its rows, before the transformation and pass the values "
                "in; sparse_read() takes indices of any shape, so one call can read all rows."
            )

    def in_own_trace(self) -> contextlib.AbstractContextManager[Any]:
        """Makes the block compute in this frame's own trace, even if another trace is innermost."""
        return contextlib.nullcontext()

    def is_innermost_trace(self) -> bool:
        """Returns whether no other transformation is active between this frame and the caller."""
        return bool(trace_state() == self._trace_state)

    def create(self, variable: Variable, initial_value: Initializer) -> None:
        """Adopts a variable that is created while tracing.

        Raises:
            ContextError: If variables cannot be created here.
        """
        raise ContextError(
            f"Variable {variable.name!r} cannot be created here. Create it outside of "
            "value_and_grad and of JAX transformations."
        )

    def use_group(self, group: ReplicaGroup) -> None:  # noqa: B027  (most frames ignore it)
        """Records that the traced program runs on ``group``."""

    def draw(self, iterator: Any, *, optional: bool = False) -> Any:
        """Returns the next element of a distributed iterator, traced.

        Args:
            iterator: The iterator.
            optional: Whether to return ``MISSING`` if there is no next element.
        """
        raise ContextError(
            "next(iterator) cannot be called here. Call it outside and pass the element."
        )

    def note_step(self, fn: ReplicaFunction) -> None:  # noqa: B027  (most frames ignore it)
        """Records a call of ``fn``, the function of a ``strategy.run`` or a compiled function."""

    def refuse_to_loop(self, dataset: Dataset) -> None:  # noqa: B027  (most frames allow it)
        """Raises if a loop over a distributed dataset cannot be traced here."""

    def update_in_turn(self, variable: Variable, update: Update, operand: ArrayLike) -> None:
        """Applies each replica's update, one after the other, to a variable that all replicas share."""
        raise NotImplementedError

    def read_rows(self, variable: BaseRemoteVariable, indices: ArrayLike) -> Any:
        """Returns rows of a variable that another process holds."""
        self.check_fetchable(variable)
        return self.rows(variable, indices)

    def rows(self, variable: BaseRemoteVariable, indices: ArrayLike) -> Any:
        """Implements ``read_rows``, after the check."""
        raise NotImplementedError

    def update_remotely(
        self, variable: BaseRemoteVariable, update: Update, operand: PyTree
    ) -> None:
        """Records an update of a remote variable, to be sent when the program has run."""
        raise NotImplementedError


def current_frame() -> StateFrame | None:
    """Returns this thread's innermost state frame, if any."""
    frames: list[StateFrame] = THIS_THREAD.state.state_frames
    return frames[-1] if frames else None


@contextlib.contextmanager
def enter(frame: StateFrame) -> Iterator[StateFrame]:
    """Makes ``frame`` this thread's innermost state frame for the block."""
    thread = THIS_THREAD.state
    frames = thread.state_frames
    depth = len(frames)
    thread.before_enter()
    try:
        frames.append(frame)
        yield frame
    finally:
        # As in `current_strategy.context.enter`: an interrupt (Ctrl-C) may have prevented an inner block
        # from popping its frame, so cut the stack at our depth. `outside_of_frames` may not have restored
        # the list either.
        if depth < len(frames) and frames[depth] is frame:
            del frames[depth:]
        thread.state_frames = frames
        thread.after_exit()


class Tape(Protocol):
    """Observes reads of variables in the thread that opened it, as a ``GradientTape`` does."""

    @property
    def is_recording(self) -> bool:
        """Whether it observes reads now."""

    def knows(self, value: ArrayLike) -> bool:
        """Returns whether the derivative of ``value`` is recorded."""

    def watches(self, variable: Variable) -> bool:
        """Returns whether derivatives with respect to ``variable`` are recorded."""

    def own(self, value: ArrayLike) -> Any:
        """Returns a new object for the same array, with no recorded history."""

    def note_read(
        self,
        variable: Variable,
        value: ArrayLike,
        *,
        indices: ArrayLike = None,
        shard: Tensor = None,
    ) -> None:
        """Records a read of ``variable``, which the tape watches.

        Args:
            variable: The variable.
            value: The value that was read.
            indices: The rows that were read. Default: all.
            shard: This replica's shard, if the variable is fully sharded.
        """


def _recording_tapes() -> list[Tape]:
    if not THREADS_IN_CONTEXT:
        return []
    return [tape for tape in THIS_THREAD.state.tapes if tape.is_recording]


def records() -> bool:
    """Returns whether any tape of this thread is recording."""
    return bool(_recording_tapes())


def record_read(variable: Variable, value: ArrayLike, indices: ArrayLike = None) -> Any:
    """Records a read of ``variable`` on the tapes of this thread.

    Args:
        variable: The variable.
        value: Its value.
        indices: The rows that were read. Default: all.

    Returns:
        The value for the reader, as an object of its own. Tapes identify arrays by ``id``: without a new
        object, the array that was assigned to the variable and the array that is read from it would be one,
        and a gradient would flow through the assignment.
    """
    tapes = _recording_tapes()
    if not tapes:
        return value
    watching = [tape for tape in tapes if tape.watches(variable)]
    if watching or any(tape.knows(value) for tape in tapes):
        value = tapes[-1].own(value)
    for tape in watching:
        tape.note_read(variable, value, indices=indices)
    return value


def record_shard_read(variable: Variable, shard: Tensor, tap: Tensor) -> tuple[Any, Any] | None:
    """Records a replica's read of a fully sharded variable on the tapes of this thread.

    Args:
        variable: The variable.
        shard: The replica's shard of it.
        tap: Zeros of the full shape, whose gradient is that of the full value.

    Returns:
        The shard and the tap for the reader; ``None`` if no tape watches the variable.
    """
    watching = [tape for tape in _recording_tapes() if tape.watches(variable)]
    if not watching:
        return None
    shard = watching[-1].own(shard)
    for tape in watching:
        tape.note_read(variable, tap, shard=shard)
    return shard, tap


def call_outside(call: Callable[[], Result]) -> Result:
    """Returns ``call()``, run as if this thread had entered no strategy, replica and trace."""
    thread = THIS_THREAD.state
    entered = thread.state_frames, thread.strategy_frames, thread.tapes
    try:
        thread.state_frames, thread.strategy_frames, thread.tapes = [], [], []
        return call()
    finally:
        thread.state_frames, thread.strategy_frames, thread.tapes = entered
        thread.before_enter()


@contextlib.contextmanager
def outside_of_frames() -> Iterator[None]:
    """Lets this thread read and write variables in the block as if no trace were active."""
    thread = THIS_THREAD.state
    frames, thread.state_frames = thread.state_frames, []
    try:
        yield
    finally:
        if frames:
            thread.before_enter()
        thread.state_frames = frames
        thread.after_exit()
