"""Where reads and writes of variables go.

Outside of any transformation a variable's value is the array it stores. While a function is traced,
and inside ``value_and_grad``, a *state frame* stands in between: reads come from it and writes stay
in it until the frame's owner hands them on. So a tracer never ends up in a variable.
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from stratagem._src.core.errors import ContextError
from stratagem._src.core.thread_state import INSIDE, THIS_THREAD
from stratagem._src.jax_compat.tracing import trace_state
from stratagem._src.variables.atomicity import OPEN, STORAGE_LOCK, Owner, alone

if TYPE_CHECKING:
    from stratagem._src.mesh.replica_group import ReplicaGroup
    from stratagem._src.variables.fully_sharded_variable import FullyShardedVariable
    from stratagem._src.variables.remotely_held_variable import RemotelyHeldVariable
    from stratagem._src.variables.updates import Update
    from stratagem._src.variables.variable import Variable

Result = TypeVar("Result")

__all__ = [
    "Journal",
    "StateFrame",
    "Tape",
    "atomically",
    "before_change",
    "current_frame",
    "current_journal",
    "enter",
    "in_loop",
    "journaled",
    "noted_parts",
    "noted_read",
    "outside_of_frames",
    "records",
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

    def around(self) -> contextlib.AbstractContextManager[Any]:
        """Has what the block computes be part of this frame's own trace, whichever is innermost."""
        return contextlib.nullcontext()

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

    def note_step(self, fn: Any) -> None:  # noqa: B027  (most frames need not know)
        """Notes that ``fn``, the function of a ``strategy.run`` or a compiled one, is called."""

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
        owner: The call that has the variables for itself meanwhile; ``None`` if others may change them.
        keeps_draws: Whether elements that are drawn from iterators are given again after a failure.
    """

    def __init__(
        self,
        parent: Journal | None = None,
        owner: Owner | None = None,
        *,
        keeps_draws: bool = False,
    ) -> None:
        self.owner = owner
        self._parent = parent
        self._keeps_draws = keeps_draws
        self._drawn: list[Callable[[], None]] = []
        self._before: dict[int, tuple[Variable, Any]] = {}
        self._changed_by_others: set[int] = set()
        self._rolled_back = False
        if owner is not None and (parent is None or parent.owner is None):
            owner.before = self._before

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

    def note_foreign_change(self, variable: Variable) -> None:
        """Notes that another call changes a variable, which then cannot be put back."""
        if id(variable) in self._before:
            self._changed_by_others.add(id(variable))

    def includes(self, other: Journal) -> bool:
        """Returns whether ``other`` is this journal or that of a call around it."""
        return self is other or (self._parent is not None and self._parent.includes(other))

    def note_draw(self, put_back: Callable[[], None]) -> None:
        """Notes how to put back an element that was drawn from an iterator."""
        if self._keeps_draws:
            self._drawn.append(put_back)

    def roll_back(self) -> list[Variable]:
        """Gives every changed variable the content it had, unless another call has changed it since.

        Returns:
            Those that keep what they have, because another call has changed them.
        """
        while self._drawn:
            self._drawn.pop()()
        with STORAGE_LOCK:
            self._rolled_back = True
            kept = []
            for variable, content in self._before.values():
                if id(variable) in self._changed_by_others:
                    kept.append(variable)
                else:
                    variable.restore_snapshot(content)
            return kept


def before_change(variable: Variable) -> None:
    """Notes a change that is to come wherever it must be known; the caller holds ``STORAGE_LOCK``."""
    journal = current_journal()
    if OPEN:
        for other in OPEN:
            if isinstance(other, Journal) and not (journal is not None and journal.includes(other)):
                other.note_foreign_change(variable)
    if journal is not None:
        journal.record(variable)


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
    thread.will_enter()
    try:
        frames.append(frame)
        yield frame
    finally:
        # As in `current_strategy.context.enter`. Also after an interrupt in `outside_of_frames`.
        if depth < len(frames) and frames[depth] is frame:
            del frames[depth:]
        thread.state_frames = frames
        thread.has_left()


class Tape(Protocol):
    """What hears of reads of variables in the thread that has opened it."""

    @property
    def is_recording(self) -> bool:
        """Whether it hears of them now."""

    def knows(self, value: Any) -> bool:
        """Returns whether the derivative of ``value`` is recorded."""

    def watches(self, variable: Variable) -> bool:
        """Returns whether derivatives with respect to ``variable`` are recorded."""

    def own(self, value: Any) -> Any:
        """Returns another object for the same array, of which nothing is recorded."""

    def note_read(
        self, variable: Variable, value: Any, *, indices: Any = None, part: Any = None
    ) -> None:
        """Notes that ``variable``, which it watches, was read.

        Args:
            variable: The variable.
            value: What was read.
            indices: Which rows of it, if not all.
            part: The part of it that this replica holds, if it is fully sharded.
        """


def _recording_tapes() -> list[Tape]:
    if not INSIDE:
        return []
    return [tape for tape in THIS_THREAD.state.tapes if tape.is_recording]


def records() -> bool:
    """Returns whether a tape of this thread records."""
    return bool(_recording_tapes())


def noted_read(variable: Variable, value: Any, indices: Any = None) -> Any:
    """Tells the tapes of this thread that ``variable`` was read.

    Args:
        variable: What was read.
        value: Its value.
        indices: Which rows of it, if not all.

    Returns:
        What the reader gets: an object of its own, because tapes know arrays by identity, and an array
        that was assigned to a variable is not what is read from it. No gradient passes through that.
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


def noted_parts(variable: Variable, part: Any, tap: Any) -> tuple[Any, Any] | None:
    """Tells the tapes of this thread that a fully sharded variable was read by a replica.

    Args:
        variable: What was read.
        part: What the replica holds of it.
        tap: Zeros, which are added to the whole.

    Returns:
        What the reader gets for both; ``None`` if no tape watches the variable.
    """
    watching = [tape for tape in _recording_tapes() if tape.watches(variable)]
    if not watching:
        return None
    part = watching[-1].own(part)
    for tape in watching:
        tape.note_read(variable, tap, part=part)
    return part, tap


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
        thread.has_left()


def current_journal() -> Journal | None:
    """Returns the journal of the call that is under way, if any."""
    journal: Journal | None = THIS_THREAD.state.journal
    return journal


class journaled:  # noqa: N801  (used as a function)
    """Makes this thread note changes of variables in ``journal`` for the block, or nowhere.

    Only inside of ``atomically``, which also puts right what an interrupt keeps from being left here. No
    generator: that would be left once more when it is collected, long after the call has ended.
    """

    __slots__ = ("_before", "_journal", "_thread")

    def __init__(self, journal: Journal | None) -> None:
        self._journal = journal
        self._thread = THIS_THREAD.state
        self._before: Journal | None = self._thread.journal

    def __enter__(self) -> None:
        self._thread.will_enter()
        self._thread.journal = self._journal

    def __exit__(self, *_: object) -> None:
        self._thread.journal = self._before
        self._thread.has_left()


# Functions and no context managers of Python's: an interrupt after one has been entered and before the
# block begins, or the other way round, would keep it from being left.


def atomically(call: Callable[[Journal], Result], *, keeps_draws: bool = False) -> Result:
    """Returns what ``call`` returns; what it does to variables happens at once, or not at all.

    Other calls on the variables it uses wait until it has ended; if it ends with an error, every change
    is taken back.

    Args:
        call: Called with the journal of its changes.
        keeps_draws: Whether iterators give again what it has drawn from them if it fails, too.
    """
    parent = current_journal()

    def run(owner: Owner) -> Result:
        return _taken_back_on_failure(Journal(parent, owner, keeps_draws=keeps_draws), call)

    owner = None if parent is None else parent.owner
    return alone(run) if owner is None else run(owner)


def in_loop(call: Callable[[], Result]) -> Result:
    """Returns what ``call``, a loop of many calls, returns; if it fails every change is taken back.

    Each call of the loop is atomic, the loop is not: other calls may come between two of its calls, and
    variables that they have changed are not taken back.
    """
    parent = current_journal()
    if parent is not None and parent.owner is not None:
        return _taken_back_on_failure(Journal(parent, parent.owner), lambda _: call())
    journal = Journal(parent)
    try:
        with STORAGE_LOCK:
            OPEN.append(journal)
        return _taken_back_on_failure(journal, lambda _: call())
    finally:
        # Again, if an interrupt arrives meanwhile.
        try:
            _close(journal)
        except BaseException:
            _close(journal)
            raise


def _close(journal: Journal) -> None:
    with STORAGE_LOCK:
        if journal in OPEN:
            OPEN.remove(journal)


def _taken_back_on_failure(journal: Journal, call: Callable[[Journal], Result]) -> Result:
    thread = THIS_THREAD.state
    before, depth = thread.journal, len(thread.strategy_frames)
    try:
        thread.will_enter()
        thread.journal = journal
        return call(journal)
    except BaseException as error:
        # Again, if an interrupt arrives meanwhile.
        try:
            kept = journal.roll_back()
        except BaseException:
            kept = journal.roll_back()
        if kept:
            names = ", ".join(sorted(repr(variable.name) for variable in kept))
            error.add_note(
                f"Other threads have changed {names} meanwhile: these keep the values they have now, all "
                "others were given back the values from before the call."
            )
        raise
    finally:
        thread.journal = before
        # An interrupt can keep a context manager inside from being left.
        del thread.strategy_frames[depth:]
        thread.has_left()
