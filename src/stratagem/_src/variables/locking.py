"""Concurrency control: which call may use which variable, so that concurrent calls are atomic.

A call is a compiled call, an eager ``run`` or one update. Calls on the same variables are serializable:
they behave as if one ran after the other. The locks, in lock order:

1. ``_TURNSTILE``: an eager ``run`` holds it until it ends. An eager run discovers the variables that it
   uses one by one, so two of them could deadlock on each other's variables; therefore only one runs at a
   time. A call that finds a variable in use waits here too. The lock is FIFO, so no thread starves. A
   compiled call with host callbacks passes through the turnstile to acquire its variables.
2. Variables, held by their *owner*. An eager ``run`` owns each variable from its first use to its end. A
   compiled call with host callbacks owns all of its variables from its launch until its callbacks return;
   it needs no further lock to end, so an eager ``run`` can wait for it. Keras ``fit`` owns the variables of
   its model, and gives them back between two steps if another call needs them.
3. The sequence of ``mesh/dispatch_queue.py``: while several processes run one program together. Only
   threads that launch such programs wait for it.
4. ``LAUNCH_LOCK`` of ``mesh/dispatch_queue.py``: from waiting for the previous program to the launch.
5. ``STORAGE_LOCK``: from reading the variables' arrays to storing the new ones. A compiled call without
   callbacks, and an update, run entirely while they hold it. If a variable has an owner, they raise
   ``Conflict`` and retry behind the turnstile. No thread waits for 1 to 4, or for another process, while it
   holds this lock.

Reads never wait: they see the values from before the call that owns the variable.

Signal handlers run in the main thread between two bytecodes, even while that thread holds locks. Reads in
a handler must see all variables either before or after the interrupted step. Updates in a handler raise;
see ``check_not_interrupting``.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from stratagem._src.core.errors import ContextError
from stratagem._src.core.fair_lock import FairLock
from stratagem._src.core.thread_state import THIS_THREAD
from stratagem._src.core.types import ArrayLike
from stratagem._src.core.waiting_notice import WaitingNotice
from stratagem._src.mesh.dispatch_queue import interrupting_error, runs_in_callback

if TYPE_CHECKING:
    from stratagem._src.variables.variable import Variable

__all__ = [
    "ACTIVE_CALLS",
    "STORAGE",
    "STORAGE_LOCK",
    "Conflict",
    "Owner",
    "acquire",
    "call_as_owner",
    "call_exclusively",
    "call_when_free",
    "change",
    "change_owned",
    "check_not_interrupting",
    "claim",
    "content_for_others",
    "current_owner",
    "store_private_copy",
    "take_ownership",
]

Result = TypeVar("Result")

_logger = logging.getLogger("stratagem")

STORAGE_LOCK = threading.RLock()
"""Held while a program or an update takes arrays and replaces them by its results."""

ACTIVE_CALLS: list[Any] = []
"""Active calls of any thread that conflict with others; changed only while ``STORAGE_LOCK`` is held."""

_POLL_SECONDS = 1.0

_TURNSTILE = FairLock()
_released = threading.Condition(STORAGE_LOCK)


class _Storage:
    """What the thread that holds ``STORAGE_LOCK`` is doing; read by that thread and its signal handlers.

    Attributes:
        busy: Whether the thread has read arrays that it is about to replace.
        complete: Stores the results of a launched program; ``None`` if there are none to store.
        was_read: Whether a signal handler has read variables while ``complete`` was set.
    """

    __slots__ = ("busy", "complete", "was_read")

    def __init__(self) -> None:
        self.busy = False
        self.complete: Callable[[], None] | None = None
        self.was_read = False


STORAGE = _Storage()


class Conflict(Exception):
    """Another active call owns a variable."""


class Owner:
    """A call that owns variables until it ends.

    Attributes:
        before: Values of the variables that it has changed, from before the call, by ``id``: what readers
            in other threads see meanwhile.
        ended: Whether it has ended.
    """

    def __init__(self) -> None:
        self.before: dict[int, tuple[Variable, Any]] = {}
        self.ended = False
        self.thread = threading.current_thread()
        self._variables: dict[
            int, Variable
        ] = {}  # kept alive, so that no other object gets their id

    def take(self, variable: Variable) -> None:
        """Takes ownership of a variable; the caller holds the lock and has checked that it is free."""
        if not self.ended:
            self._variables[id(variable)] = variable
            _owners[id(variable)] = self

    def content(self, variable: Variable) -> tuple[Variable, Any] | None:
        """Returns what other calls read: the value from before, or ``None`` for the variable's own.

        The caller holds ``STORAGE_LOCK``.
        """
        return self.before.get(id(variable))

    def give_back(self) -> bool:
        """Ends early if another call needs the variables; returns whether they are free now.

        The caller holds ``STORAGE_LOCK``.
        """
        return self.ended

    def end(self) -> None:
        """Releases the variables and wakes the calls that wait for them."""
        with STORAGE_LOCK:
            self.ended = True
            for identity in self._variables:
                _owners.pop(identity, None)
            if self in ACTIVE_CALLS:
                ACTIVE_CALLS.remove(self)
            _released.notify_all()


_owners: dict[int, Owner] = {}


def current_owner() -> Owner | None:
    """Returns the owner that this thread works for, if any."""
    journal = THIS_THREAD.state.journal
    return None if journal is None else journal.owner


def content_for_others(variable: Variable) -> tuple[Variable, Any] | None:
    """Returns a variable's value from before a call of another thread, if that call owns and changed it.

    The caller holds ``STORAGE_LOCK``.
    """
    owner = _owners.get(id(variable))
    if owner is None or owner is current_owner():
        return None
    return owner.content(variable)


def claim(variable: Variable) -> None:
    """Takes ownership of a variable for the eager run that this thread works for, if any.

    The caller holds ``STORAGE_LOCK``, and must not have read any storage yet: the lock is released while
    another call owns the variable.
    """
    owner = current_owner()
    if owner is not None and _owners.get(id(variable)) is not owner:
        _wait_until_free([variable], owner)
        owner.take(variable)


def take_ownership(variables: Iterable[Variable], owner: Owner | None) -> None:
    """Checks that a call may use variables, and takes ownership of them if ``owner`` is given.

    The caller holds ``STORAGE_LOCK``.

    Raises:
        Conflict: If another call owns one of them.
    """
    found = list(variables)
    if _foreign_owner(found, owner) is not None:
        raise Conflict
    if owner is not None:
        for variable in found:
            owner.take(variable)


# Functions and not context managers: a KeyboardInterrupt between `__enter__` and the first statement of the
# block, or between the last one and `__exit__`, would skip `__exit__`.


def call_when_free(variables: Iterable[Variable], call: Callable[[], Result]) -> Result:
    """Runs ``call`` behind the turnstile once no other call owns the variables, and returns its result."""
    found, owner = list(variables), current_owner()

    def run() -> Result:
        with STORAGE_LOCK:
            _wait_until_free(found, owner)
        return call()

    return _behind_turnstile(owner, run)


def call_as_owner(variables: Iterable[Variable], call: Callable[[Owner], Result]) -> Result:
    """Runs ``call`` as the owner of variables and returns its result.

    Other calls on them wait; reads see the values from before.
    """
    found, current = list(variables), current_owner()
    owner = Owner() if current is None else current

    def acquire_all() -> None:
        with STORAGE_LOCK:
            _wait_until_free(found, owner)
            if current is None:
                ACTIVE_CALLS.append(owner)
            take_ownership(found, owner)

    if current is not None:
        acquire_all()
        return call(current)
    try:
        _behind_turnstile(None, acquire_all)
        return call(owner)
    finally:
        # Once more if an interrupt (Ctrl-C) arrives during the first attempt.
        try:
            owner.end()
        except BaseException:
            owner.end()
            raise


def acquire(owner: Owner, variables: Iterable[Variable]) -> None:
    """Takes ownership of free variables until ``owner.end()``.

    Updates by other threads wait until then; updates by signal handlers of the owner's thread raise.
    """
    with STORAGE_LOCK:
        ACTIVE_CALLS.append(owner)
        take_ownership(variables, owner)


def call_exclusively(call: Callable[[Owner], Result]) -> Result:
    """Runs ``call`` exclusively: it owns each variable from its first use to its end."""

    def run() -> Result:
        owner = Owner()
        try:
            with STORAGE_LOCK:
                ACTIVE_CALLS.append(owner)
            return call(owner)
        finally:
            # Once more if an interrupt (Ctrl-C) arrives during the first attempt.
            try:
                owner.end()
            except BaseException:
                owner.end()
                raise

    return _behind_turnstile(None, run)


def change(variable: Variable, replace: Callable[[], Result]) -> Result:
    """Calls ``replace``, which stores a variable's new content, with the lock held and the variable free.

    Raises:
        ContextError: In a signal handler that interrupts a change or a step.
    """
    try:
        return _change_now(variable, replace)
    except Conflict:
        return call_when_free([variable], lambda: _change_now(variable, replace))


def change_owned(replace: Callable[[], Result]) -> Result:
    """Like ``change``, for a call that owns the variable; see ``call_as_owner``."""
    with STORAGE_LOCK:
        check_not_interrupting()
        STORAGE.busy = True
        try:
            return replace()
        finally:
            STORAGE.busy = False


def store_private_copy(variable: Variable, array: ArrayLike) -> None:
    """Stores the same value again in an array that only the variable holds; readers see no change."""
    with STORAGE_LOCK:
        if STORAGE.busy:
            # This is a signal handler that reads the variable, and it interrupted a change.
            variable.store(array)
            return
    change(variable, lambda: variable.store(array))


def _change_now(variable: Variable, replace: Callable[[], Result]) -> Result:
    with STORAGE_LOCK:
        check_not_interrupting()
        if ACTIVE_CALLS:
            take_ownership([variable], current_owner())
        STORAGE.busy = True
        try:
            return replace()
        finally:
            STORAGE.busy = False


def check_not_interrupting() -> None:
    """Checks that this thread is not in a signal handler that interrupts a step or an update.

    The caller holds ``STORAGE_LOCK``, so if a thread is busy it is this one.

    Raises:
        ContextError: If it is.
    """
    if STORAGE.busy:
        raise interrupting_error()


def _behind_turnstile(owner: Owner | None, call: Callable[[], Result]) -> Result:
    """Runs ``call`` while this thread holds the turnstile; an eager run (``owner``) holds it already."""
    if owner is not None:
        return call()
    if runs_in_callback() and _TURNSTILE.is_taken:
        raise _callback_error()
    if _TURNSTILE.is_wanted_here():
        raise interrupting_error()
    return _TURNSTILE.run(call, _warn_long_wait)


def _foreign_owner(variables: Iterable[Variable], owner: Owner | None) -> Owner | None:
    for variable in variables:
        found = _owners.get(id(variable))
        if found is not None and found is not owner and not found.give_back():
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
            _warn_long_wait(notice.seconds)


def _warn_long_wait(seconds: float) -> None:
    names = {owner.thread.name for owner in ACTIVE_CALLS if isinstance(owner, Owner)}
    _logger.warning(
        "Thread %r has waited %.0f s for variables that an unfinished call of thread %s owns. If that call "
        "waits for this thread, they are deadlocked.",
        threading.current_thread().name,
        seconds,
        " or ".join(map(repr, sorted(names))) or "unknown",
    )


def _callback_error() -> ContextError:
    return ContextError(
        "A host callback (jax.pure_callback, io_callback, jax.debug.callback) of a compiled step cannot "
        "update a variable that the step, or another active call, uses: the step waits for the callback. "
        "Return the value from the callback and update the variable in or after the step."
    )
