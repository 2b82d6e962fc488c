"""Transactions on variables: journals of changes, and rollback when a call fails.

``atomically`` makes a call a transaction: it owns the variables that it uses (see ``locking.py``), and its
``Journal`` restores them if the call raises.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from stratagem._src.core.errors import ContextError
from stratagem._src.core.thread_state import THIS_THREAD
from stratagem._src.variables.locking import ACTIVE_CALLS, STORAGE_LOCK, Owner, call_exclusively

if TYPE_CHECKING:
    from stratagem._src.variables.variable import Variable

Result = TypeVar("Result")

__all__ = [
    "Journal",
    "atomically",
    "before_change",
    "current_journal",
    "in_loop",
    "journaled",
]


class Journal:
    """Undo log: records the values of variables before their first change, to restore them on failure.

    Args:
        parent: The journal of the enclosing call, which records every change too.
        owner: The call that owns the variables meanwhile; ``None`` if others may change them.
        keeps_draws: Whether a rollback also returns elements to the iterators they were drawn from.
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
        """Records the variable's content before its first change.

        Raises:
            ContextError: If the call has already failed and been rolled back.
        """
        if self._rolled_back:
            raise ContextError(
                f"Variable {variable.name!r} is changed by a replica after its call has failed and was "
                "rolled back."
            )
        if id(variable) not in self._before:
            self._before[id(variable)] = (variable, variable.snapshot())
            if self._parent is not None:
                self._parent.record(variable)

    def note_foreign_change(self, variable: Variable) -> None:
        """Records that another call changes a variable, so that a rollback must not restore it."""
        if id(variable) in self._before:
            self._changed_by_others.add(id(variable))

    def includes(self, other: Journal) -> bool:
        """Returns whether ``other`` is this journal or the journal of an enclosing call."""
        return self is other or (self._parent is not None and self._parent.includes(other))

    def note_draw(self, put_back: Callable[[], None]) -> None:
        """Records how to return a drawn element to its iterator."""
        if self._keeps_draws:
            self._drawn.append(put_back)

    def roll_back(self) -> list[Variable]:
        """Restores every changed variable, except those that another call has changed since.

        Returns:
            The variables that were not restored.
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
    """Records an imminent change in every journal that needs it; the caller holds ``STORAGE_LOCK``."""
    journal = current_journal()
    if ACTIVE_CALLS:
        for other in ACTIVE_CALLS:
            if isinstance(other, Journal) and not (journal is not None and journal.includes(other)):
                other.note_foreign_change(variable)
    if journal is not None:
        journal.record(variable)


def current_journal() -> Journal | None:
    """Returns the journal of the current call, if any."""
    journal: Journal | None = THIS_THREAD.state.journal
    return journal


class journaled:  # noqa: N801  (used as a function)
    """Context manager: this thread records changes of variables in ``journal``, or nowhere if ``None``.

    Use it only inside ``atomically``, which repairs the thread's state if an interrupt skips ``__exit__``.
    It is a class and not a generator: a generator whose exit was skipped would run its ``finally`` when it
    is garbage collected, long after the call.
    """

    __slots__ = ("_before", "_journal", "_thread")

    def __init__(self, journal: Journal | None) -> None:
        self._journal = journal
        self._thread = THIS_THREAD.state
        self._before: Journal | None = self._thread.journal

    def __enter__(self) -> None:
        self._thread.before_enter()
        self._thread.journal = self._journal

    def __exit__(self, *_: object) -> None:
        self._thread.journal = self._before
        self._thread.after_exit()


# Functions and not context managers: a KeyboardInterrupt between `__enter__` and the first statement of the
# block, or between the last one and `__exit__`, would skip `__exit__`.


def atomically(call: Callable[[Journal], Result], *, keeps_draws: bool = False) -> Result:
    """Runs ``call`` as a transaction on variables and returns its result.

    Other calls on the variables that it uses wait until it ends. If it raises, its changes are rolled back.

    Args:
        call: Called with the journal of its changes.
        keeps_draws: Whether a rollback also returns drawn elements to their iterators.
    """
    parent = current_journal()

    def run(owner: Owner) -> Result:
        return _rolled_back_on_failure(Journal(parent, owner, keeps_draws=keeps_draws), call)

    owner = None if parent is None else parent.owner
    return call_exclusively(run) if owner is None else run(owner)


def in_loop(call: Callable[[], Result]) -> Result:
    """Runs ``call``, a loop of many calls, and returns its result; rolls back its changes if it raises.

    Each call of the loop is atomic, the loop is not: other calls may run between two of its calls, and the
    variables that they change are not rolled back.
    """
    parent = current_journal()
    if parent is not None and parent.owner is not None:
        return _rolled_back_on_failure(Journal(parent, parent.owner), lambda _: call())
    journal = Journal(parent)
    try:
        with STORAGE_LOCK:
            ACTIVE_CALLS.append(journal)
        return _rolled_back_on_failure(journal, lambda _: call())
    finally:
        # Once more if an interrupt (Ctrl-C) arrives during the first attempt.
        try:
            _close(journal)
        except BaseException:
            _close(journal)
            raise


def _close(journal: Journal) -> None:
    with STORAGE_LOCK:
        if journal in ACTIVE_CALLS:
            ACTIVE_CALLS.remove(journal)


def _rolled_back_on_failure(journal: Journal, call: Callable[[Journal], Result]) -> Result:
    thread = THIS_THREAD.state
    before, depth = thread.journal, len(thread.strategy_frames)
    try:
        thread.before_enter()
        thread.journal = journal
        return call(journal)
    except BaseException as error:
        # Once more if an interrupt (Ctrl-C) arrives during the first attempt.
        try:
            kept = journal.roll_back()
        except BaseException:
            kept = journal.roll_back()
        if kept:
            names = ", ".join(sorted(repr(variable.name) for variable in kept))
            error.add_note(
                f"Other threads have changed {names} meanwhile. These keep their current values; all other "
                "variables were rolled back to their values before the call."
            )
        raise
    finally:
        thread.journal = before
        # An interrupt can skip the exit of a context manager inside the call.
        del thread.strategy_frames[depth:]
        thread.after_exit()
