"""Which call may use which variable: what makes concurrent calls atomic.

A call is a compiled call, an eager ``run`` or one update. Calls on the same variables behave as if one
came after the other. What is held meanwhile, always taken in this order:

1. ``_TURNSTILE``, by an eager ``run`` until it ends. It finds out one by one which variables it uses, so
   two of them could each wait for a variable of the other; there is one at a time. A call that found a
   variable in use waits here too: threads pass in the order in which they came, so none starves. A
   compiled call with host callbacks passes through to get its variables.
2. Variables, by their *owner*: an eager ``run`` owns each variable from its first use to its end, a
   compiled call with host callbacks all of its variables from its launch until its callbacks have
   returned. Such a call needs nothing more to end, so an eager ``run`` can wait for it.
3. ``LAUNCH_LOCK`` of ``mesh/dispatch_queue.py``, from waiting for the program before until the launch.
4. ``STORAGE_LOCK``, from reading variables' arrays until the new ones are stored. A compiled call without
   callbacks and an update take place entirely while it is held; if a variable has an owner they raise
   ``Conflict`` there and begin again behind the turnstile. Nobody waits for 1 to 3 while holding it.

Reads wait for nobody: they see the values before the call that owns the variable.

Signal handlers run in the main thread between two bytecodes, also while that thread holds locks. Reads
in a handler must find all variables before or all after the step that was interrupted; updates in a
handler raise, see ``check_not_interrupting``.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from stratagem._src.core.errors import ContextError
from stratagem._src.core.fair_lock import FairLock
from stratagem._src.core.thread_state import THIS_THREAD
from stratagem._src.core.waiting_notice import WaitingNotice
from stratagem._src.mesh.dispatch_queue import interrupting_error, runs_in_callback

if TYPE_CHECKING:
    from stratagem._src.variables.variable import Variable

__all__ = [
    "OPEN",
    "STORAGE",
    "STORAGE_LOCK",
    "Conflict",
    "Owner",
    "admitted",
    "alone",
    "change",
    "check_not_interrupting",
    "content_for_others",
    "current_owner",
    "own",
    "owning",
    "put",
    "take_ownership",
    "use",
]

Result = TypeVar("Result")

_logger = logging.getLogger("stratagem")

STORAGE_LOCK = threading.RLock()
"""Held while arrays are given to a program or an update, and replaced by its results."""

OPEN: list[Any] = []
"""Calls under way, of any thread, that others must mind; changed while ``STORAGE_LOCK`` is held."""

_POLL_SECONDS = 1.0

_TURNSTILE = FairLock()
_released = threading.Condition(STORAGE_LOCK)


class _Storage:
    """What the thread that holds ``STORAGE_LOCK`` is doing; others never see it.

    Attributes:
        busy: Whether it has read arrays that it is going to replace.
        complete: Stores the results of a program that was launched; ``None`` if there is nothing to store.
        was_read: Whether a signal handler has read variables while ``complete`` was set.
    """

    __slots__ = ("busy", "complete", "was_read")

    def __init__(self) -> None:
        self.busy = False
        self.complete: Callable[[], None] | None = None
        self.was_read = False


STORAGE = _Storage()


class Conflict(Exception):
    """A variable belongs to another call that is under way."""


class Owner:
    """A call that has variables for itself until it ends.

    Attributes:
        before: What variables held that it has changed, by identity: for those who read meanwhile.
        ended: Whether it has ended.
    """

    def __init__(self) -> None:
        self.before: dict[int, tuple[Variable, Any]] = {}
        self.ended = False
        self.thread = threading.current_thread()
        self._variables: dict[int, Variable] = {}  # alive, so that their identities stay theirs

    def take(self, variable: Variable) -> None:
        """Makes a variable this call's own; the caller holds the lock and has found it free."""
        if not self.ended:
            self._variables[id(variable)] = variable
            _owners[id(variable)] = self

    def end(self) -> None:
        """Leaves the variables to others."""
        with STORAGE_LOCK:
            self.ended = True
            for identity in self._variables:
                _owners.pop(identity, None)
            if self in OPEN:
                OPEN.remove(self)
            _released.notify_all()


_owners: dict[int, Owner] = {}


def current_owner() -> Owner | None:
    """Returns the owner for which this thread works, if any."""
    journal = THIS_THREAD.state.journal
    return None if journal is None else journal.owner


def content_for_others(variable: Variable) -> tuple[Variable, Any] | None:
    """Returns what a variable held before the call of another thread that owns and has changed it.

    The caller holds ``STORAGE_LOCK``.
    """
    owner = _owners.get(id(variable))
    if owner is None or owner is current_owner():
        return None
    return owner.before.get(id(variable))


def use(variable: Variable) -> None:
    """Makes a variable the own one of the eager run that this thread works for, if it does.

    The caller holds ``STORAGE_LOCK`` and has read nothing yet that may change: it is released if another
    call must end first.
    """
    owner = current_owner()
    if owner is not None and _owners.get(id(variable)) is not owner:
        _wait_until_free([variable], owner)
        owner.take(variable)


def take_ownership(variables: Iterable[Variable], owner: Owner | None) -> None:
    """Checks that a call may use variables, and makes them its own if it is an owner.

    The caller holds ``STORAGE_LOCK``.

    Raises:
        Conflict: If one of them belongs to another call.
    """
    found = list(variables)
    if _foreign_owner(found, owner) is not None:
        raise Conflict
    if owner is not None:
        for variable in found:
            owner.take(variable)


# Functions and no context managers of Python's: an interrupt after one has been entered and before the
# block begins, or the other way round, would keep it from being left.


def admitted(variables: Iterable[Variable], call: Callable[[], Result]) -> Result:
    """Returns what ``call`` returns, called when no other call owns the variables, and kept so."""
    found, owner = list(variables), current_owner()

    def run() -> Result:
        with STORAGE_LOCK:
            _wait_until_free(found, owner)
        return call()

    return _behind_turnstile(owner, run)


def owning(variables: Iterable[Variable], call: Callable[[Owner], Result]) -> Result:
    """Returns what ``call`` returns, which owns variables meanwhile.

    Other calls on them wait; reads see the values before.
    """
    found, current = list(variables), current_owner()
    owner = Owner() if current is None else current

    def own() -> None:
        with STORAGE_LOCK:
            _wait_until_free(found, owner)
            if current is None:
                OPEN.append(owner)
            take_ownership(found, owner)

    if current is not None:
        own()
        return call(current)
    try:
        _behind_turnstile(None, own)
        return call(owner)
    finally:
        # Again, if an interrupt arrives meanwhile.
        try:
            owner.end()
        except BaseException:
            owner.end()
            raise


def own(owner: Owner, variables: Iterable[Variable]) -> None:
    """Makes variables that nobody owns a call's own until ``owner.end()``.

    Updates by other threads wait for that; updates by signal handlers of the owner's thread raise.
    """
    with STORAGE_LOCK:
        OPEN.append(owner)
        take_ownership(variables, owner)


def alone(call: Callable[[Owner], Result]) -> Result:
    """Returns what ``call`` returns, which owns each variable from its first use to its end."""

    def run() -> Result:
        owner = Owner()
        try:
            with STORAGE_LOCK:
                OPEN.append(owner)
            return call(owner)
        finally:
            # Again, if an interrupt arrives meanwhile.
            try:
                owner.end()
            except BaseException:
                owner.end()
                raise

    return _behind_turnstile(None, run)


def change(variable: Variable, replace: Callable[[], Result]) -> Result:
    """Calls what replaces the content of a variable, when that may be done and with the lock held.

    Raises:
        ContextError: In a signal handler that interrupts a change or a step.
    """
    try:
        return _change_now(variable, replace)
    except Conflict:
        return admitted([variable], lambda: _change_now(variable, replace))


def put(variable: Variable, array: Any) -> None:
    """Stores the value that a variable has had for its readers already, in an array of its own now."""
    with STORAGE_LOCK:
        if STORAGE.busy:
            # A signal handler that reads the variable, and interrupts the same thing or another change.
            variable.store(array)
            return
    change(variable, lambda: variable.store(array))


def _change_now(variable: Variable, replace: Callable[[], Result]) -> Result:
    with STORAGE_LOCK:
        check_not_interrupting()
        if OPEN:
            take_ownership([variable], current_owner())
        STORAGE.busy = True
        try:
            return replace()
        finally:
            STORAGE.busy = False


def check_not_interrupting() -> None:
    """Checks that this thread is not in a signal handler that interrupts a step or an update.

    The caller holds ``STORAGE_LOCK``, so whoever is busy is this thread.

    Raises:
        ContextError: If it is.
    """
    if STORAGE.busy:
        raise interrupting_error()


def _behind_turnstile(owner: Owner | None, call: Callable[[], Result]) -> Result:
    """Calls something while this thread holds the turnstile; an eager run, the owner, does already."""
    if owner is not None:
        return call()
    if runs_in_callback() and _TURNSTILE.is_taken:
        raise _callback_error()
    if _TURNSTILE.is_wanted_here():
        raise interrupting_error()
    return _TURNSTILE.run(call, _say_who_runs)


def _foreign_owner(variables: Iterable[Variable], owner: Owner | None) -> Owner | None:
    for variable in variables:
        found = _owners.get(id(variable))
        if found is not None and found is not owner:
            return found
    return None


def _wait_until_free(variables: list[Variable], owner: Owner | None) -> None:
    """Waits, releasing the lock meanwhile, until no other call owns the variables."""
    notice = WaitingNotice()
    while (found := _foreign_owner(variables, owner)) is not None:
        if runs_in_callback():
            raise _callback_error()
        if found.thread is threading.current_thread():
            raise interrupting_error()
        _released.wait(_POLL_SECONDS)
        if notice.is_due():
            _say_who_runs(notice.seconds)


def _say_who_runs(seconds: float) -> None:
    names = {owner.thread.name for owner in OPEN if isinstance(owner, Owner)}
    _logger.warning(
        "Thread %r has waited %.0f s to use variables: they belong to a call of thread %s, which has not "
        "ended. If that call waits for this thread, neither can go on.",
        threading.current_thread().name,
        seconds,
        " or ".join(map(repr, sorted(names))) or "unknown",
    )


def _callback_error() -> ContextError:
    return ContextError(
        "A host callback (jax.pure_callback, io_callback, jax.debug.callback) of a compiled step cannot "
        "update a variable that the step, or another call that is under way, uses: the step waits for "
        "the callback. Return the value from the callback and update the variable in or after the step."
    )
